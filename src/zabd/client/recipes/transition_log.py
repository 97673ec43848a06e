"""What hears of the life of a place: the log of a lock, of an election, of a key."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from zabd.client.recipes.place import Place


class TransitionLog(Protocol):
    """Hears what becomes of a place (I4)."""

    def created(self, place: "Place") -> None:
        """The znode exists and is ours."""

    def adopted(self, place: "Place") -> None:
        """The znode of a create whose reply was lost was found."""

    def orphan_deleted(self, place: "Place", name: str) -> None:
        """A second znode of ours was found and deleted."""

    def resent(self, place: "Place") -> None:
        """A create whose reply was lost had not happened, and is sent again."""

    def parent_missing(self, place: "Place") -> None:
        """The parent has to be made, or made again."""

    def watch_fired(self, place: "Place", predecessor: str) -> None:
        """The event of the watch on the next lower znode came."""

    def acquired(self, place: "Place") -> None:
        """Nobody is ahead."""

    def released(self, place: "Place", outcome: str) -> None:
        """The znode is deleted."""

    def session_expired(self, place: "Place") -> None:
        """The session is over, and the znode with it."""
