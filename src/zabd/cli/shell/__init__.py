"""`zabctl shell`: ZooKeeper's command line, in a terminal, in a pipe or for one command.

The table of commands is in `table`; what a line says is read by `lines` and `command`.
"""
