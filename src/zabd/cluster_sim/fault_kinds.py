"""The kinds of faults, by the names that users give to `simulate(..., faults=[...])`.

All are within the model: an ensemble has to survive them without losing anything. Damage to a disk
is so as long as a quorum of the others has all that it had: what goes further must stop members
rather than lose anything, and chance does not go there.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FAULT_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # processes
        "kill": "a process dies; its machine keeps what was written",
        "power cut": "a machine loses power: memory, connections, and what was not synced",
        "power cut of all": "all machines at once",
        "crash between effects": "a kill or power cut before a chosen effect",
        "crash at the disk": "a kill or power cut within a chosen disk operation",
        "pause": "a process stops for a while (SIGSTOP)",
        "slow member": "a process is busy for a while after each of its turns",
        "clock step": "a machine's wall clock jumps by a second, an hour or years, and back",
        "clock drift": "a machine's monotonic clock runs at half to twice its speed for a while",
        "abdicate": "a leader is told to give up its leadership",
        "named leader": "chance decides an election in place of the votes",
        "snapshot": "a snapshot is taken now",
        # placed where they hurt most
        "crash at a turn": "a kill or power cut at or right after a promise, an ack, a commit",
        "lonely proposal": "the leader is cut off with a proposal that a minority has at most",
        "forced succession": "the leader goes, and chance names the next one to all who look",
        # the network
        "partition": "two groups that do not reach each other",
        "one-way partition": "one machine does not reach another one",
        "bridge": "two groups that only one member reaches",
        "flapping": "the path between two machines comes and goes, several times",
        "isolate the leader": "the leader reaches nobody",
        "cut": "a connection breaks: a prefix, then a reset to each side, each at its time",
        "half-open": "one side is reset, the other one finds out when it sends",
        "stall": "a connection moves nothing for a while",
        "one-way stall": "a connection moves nothing in one direction for a while",
        "slow path": "one direction between two machines becomes slow",
        "votes lost": "half of all election messages are lost for a while",
        "votes doubled": "half of all election messages arrive twice, the second time much later",
        "votes reordered": "election messages overtake each other",
        # disks
        "unsynced writes lost": "a power cut behind a write that is not synced, which is lost",
        "torn write": "a power cut that leaves some sectors of a write that is not synced",
        "lost rename": "a power cut that undoes a rename, and keeps every byte",
        "lost directory entry": "a power cut that undoes the creation or removal of a file",
        "disk stall": "no disk operation completes for a while",
        "slow sync": "each sync takes a good part of a tick longer",
        "write error": "a write fails (EIO), once or for ever",
        "sync error": "a sync fails (EIO), once or for ever",
        "disk full": "there is no room for a while: files cannot grow (ENOSPC)",
        "disk full at the sync": "a sync finds that there was no room (ENOSPC), once or for ever",
        "bit flip": "one bit of a file turns while its member is down",
        "zeroed sector": "a sector of a file is zeros when its member comes back",
        "misdirected write": "a sector of a file holds what belongs elsewhere",
        "shortened file": "a file has lost its end",
        "lost file": "a file is gone",
        "damaged snapshot": "the newest snapshot is flipped, zeroed, cut, empty or gone",
        "missing epoch file": "the file with a member's promises is gone",
        "rot": "a sector or a bit of a file changes that a running member may read again",
        "lost disk": "a member's disks are replaced by empty ones",
        # clients
        "session expiry": "a client hears from nobody until its session is over",
        "reconnect storm": "all clients lose their connections at once",
        "slow reader": "a client takes nothing of what it is sent for a while",
    }
)
"""Each kind's name, and what it is."""
