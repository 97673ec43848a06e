"""One member's whole behaviour, without I/O: client bytes and peer messages in, effects out.

The room holds the glue between the protocol engine (`zabd.zab`), the tree (`zabd.znode_tree`) and
the client protocol (`zabd.wire`). The server and the simulator both drive the same `Replica`, so
what is tested is what runs.
"""

from zabd.replica.config import ReplicaConfig
from zabd.replica.replica import Replica

__all__ = ["Replica", "ReplicaConfig"]
