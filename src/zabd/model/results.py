"""Results: what the service answers, one value for each response of the client protocol, section 6.

Results are tuples too: compare types before values, and mind that one without fields is falsy.
"""

from typing import NamedTuple, TypeAlias

from zabd.model.acl import Acl
from zabd.model.stat import Stat


class EmptyResult(NamedTuple):
    """Done; the reply's header says it all."""


class CreateResult(NamedTuple):
    """The path of the new znode, with its sequence number if it has one."""

    path: str


class Create2Result(NamedTuple):
    """The path and Stat of the new znode."""

    path: str
    stat: Stat


class StatResult(NamedTuple):
    """The Stat that exists found, or that setData and setACL left behind."""

    stat: Stat


class GetDataResult(NamedTuple):
    """Data (None if null, which differs from empty) and Stat; the answer to reconfig as well."""

    data: bytes | None
    stat: Stat


class ChildrenResult(NamedTuple):
    """The names of the children; clients must not rely on their order."""

    children: tuple[str, ...]


class Children2Result(NamedTuple):
    """The names of the children, and the Stat of their parent."""

    children: tuple[str, ...]
    stat: Stat


class AclResult(NamedTuple):
    """The ACL and the Stat."""

    acl: tuple[Acl, ...]
    stat: Stat


class SyncResult(NamedTuple):
    """The path that was asked for."""

    path: str | None


class SaslResult(NamedTuple):
    """The server's step of a SASL exchange."""

    token: bytes | None


class EphemeralsResult(NamedTuple):
    """The paths of the calling session's ephemerals."""

    paths: tuple[str, ...]


class AllChildrenNumberResult(NamedTuple):
    """How many znodes there are below."""

    total: int


class ClientInfo(NamedTuple):
    """One of the connection's identities, without what is secret in it."""

    scheme: str
    user: str


class WhoAmIResult(NamedTuple):
    """The identities of the connection."""

    infos: tuple[ClientInfo, ...]


class ErrorResult(NamedTuple):
    """A code in the place of a result: 0 answers addWatch; see MultiResult for the others."""

    code: int


class DeleteResult(NamedTuple):
    """A delete of a multi succeeded."""


class CheckResult(NamedTuple):
    """A check of a multi held."""


MultiPart: TypeAlias = (
    CreateResult
    | Create2Result
    | DeleteResult
    | StatResult
    | CheckResult
    | GetDataResult
    | ChildrenResult
    | ErrorResult
)


class MultiResult(NamedTuple):
    """One result for each op of a multi or multiRead, in their order (protocol section 12).

    A multi that failed has only ErrorResults: 0 for the ops before the culprit, its own code,
    RUNTIME_INCONSISTENCY for those after it. In a multiRead each read succeeds or fails for itself.
    """

    results: tuple[MultiPart, ...]


Result: TypeAlias = (
    EmptyResult
    | CreateResult
    | Create2Result
    | StatResult
    | GetDataResult
    | ChildrenResult
    | Children2Result
    | AclResult
    | SyncResult
    | SaslResult
    | EphemeralsResult
    | AllChildrenNumberResult
    | WhoAmIResult
    | ErrorResult
    | MultiResult
)
