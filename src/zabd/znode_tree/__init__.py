"""The replicated state: the tree of znodes, its sessions and its watches, without I/O."""
