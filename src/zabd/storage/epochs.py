"""What a member has promised (its epochs) and who it is (its identity): two small files.

Invariants
    E1  The epochs only grow, `current <= accepted`, and they are durable before the reply that
        promises them (S19, D3, D10).
    E2  The epochs are written before the identity when a directory is made: an identity without
        epochs is damage, never a new directory.
    E3  A directory serves one member of one ensemble for ever (S22), unless an operator has an
        ensemble founded anew from it: then it remembers the former ones, which its log names.
"""

from typing import Final, NamedTuple

from zabd.model import DamagedError, Epoch, MemberId, StorageError, Zxid
from zabd.storage import small_file
from zabd.zab.log import GENESIS, LogPosition

EPOCHS: Final = "epochs"
IDENTITY: Final = "identity"


class Epochs(NamedTuple):
    """The promises, and `mark`: a point that the durable log had reached when they were written."""

    accepted: Epoch
    current: Epoch
    mark: LogPosition = GENESIS


class Identity(NamedTuple):
    """The owner of a directory; the cluster id is None until the member has joined an ensemble.

    `former` are the ids of the ensembles from which this one was founded anew, oldest first.
    """

    member: MemberId
    cluster_id: bytes | None
    former: tuple[bytes, ...] = ()

    def joined(self, cluster_id: bytes) -> "Identity":
        """The same member in this ensemble, which it has founded anew if it had another one."""
        if self.cluster_id in {None, cluster_id}:
            return self._replace(cluster_id=cluster_id)
        former = (*self.former, self.cluster_id)
        return Identity(self.member, cluster_id, tuple(filter(None, former)))


def encode_epochs(epochs: Epochs) -> bytes:
    """The epochs file."""
    values = {
        "accepted": str(epochs.accepted),
        "current": str(epochs.current),
        "mark": position_text(epochs.mark),
    }
    return small_file.encode(EPOCHS, values)


def decode_epochs(data: bytes) -> Epochs:
    """What the epochs file says; DamagedError if it is not one that `encode_epochs` made."""
    values = small_file.decode(EPOCHS, data)
    epochs = Epochs(int(values["accepted"]), int(values["current"]), parse_position(values["mark"]))
    if epochs.current > epochs.accepted:
        raise DamagedError(
            f"the file {EPOCHS} names a current epoch {epochs.current} above the accepted epoch "
            f"{epochs.accepted}, which no member writes; restore the directory from a copy"
        )
    return epochs


def encode_identity(identity: Identity) -> bytes:
    """The identity file."""
    cluster = "none" if identity.cluster_id is None else identity.cluster_id.hex()
    values = {"member": str(identity.member), "cluster": cluster}
    if identity.former:
        values["former"] = " ".join(one.hex() for one in identity.former)
    return small_file.encode(IDENTITY, values)


def decode_identity(data: bytes) -> Identity:
    """What the identity file says; DamagedError if it is not one that `encode_identity` made."""
    values = small_file.decode(IDENTITY, data)
    cluster = values["cluster"]
    former = tuple(map(bytes.fromhex, values.get("former", "").split()))
    cluster_id = None if cluster == "none" else bytes.fromhex(cluster)
    return Identity(int(values["member"]), cluster_id, former)


def check_identity(
    found: Identity, member: MemberId, cluster_id: bytes | None, former: tuple[bytes, ...] = ()
) -> None:
    """Refuse a directory of another member or of another ensemble (S22)."""
    if found.member != member:
        raise StorageError(
            f"the data directory belongs to member {found.member} and this is member {member}; "
            "give each member the directory it was started on first"
        )
    if cluster_id is not None and found.cluster_id not in {None, cluster_id, *former}:
        raise StorageError(
            f"the data directory belongs to the ensemble {(found.cluster_id or b'').hex()} and "
            f"this member to {cluster_id.hex()}; name the directory that belongs to this ensemble"
        )


def position_text(position: LogPosition) -> str:
    """A position as the small files write it: zxid and chain in hexadecimal."""
    return f"{int(position.zxid):016x} {position.chain.hex()}"


def parse_position(text: str) -> LogPosition:
    """The inverse of `position_text`."""
    zxid, chain = text.split()
    return LogPosition(Zxid(int(zxid, 16)), bytes.fromhex(chain))
