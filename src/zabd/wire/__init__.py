"""The client protocol: bytes to the words of `zabd.model` and back, without I/O."""
