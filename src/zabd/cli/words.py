"""Asking a member by four-letter word, and reading what it says.

The words are plain text over a connection of their own, so they tell a member that serves from one
that only runs, from one that is frozen and from one that is gone, whatever its sessions do
(client protocol, section 21).
"""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

# An answer of `cons` or `wchp` can be long, but no member's answer comes near this.
ANSWER_BYTES_MAX = 64 * 1024 * 1024
NOT_SERVING = "not currently serving requests"
ADDRESS_COUNT_MAX = 64  # addresses asked at a time; ensembles have a tenth of that


class Reachability(StrEnum):
    """What a member's client port tells about it."""

    SERVING = "serving"
    NOT_SERVING = "not serving"  # it runs and answers, but has no quorum
    SILENT = "silent"  # it takes connections and says nothing: frozen, or not a member
    DOWN = "down"  # nobody listens


class WordError(OSError):
    """A member did not answer a word, or said more than any member would."""


def ask(host: str, port: int, word: str, *, timeout_s: float = 2.0) -> str:
    """Send a four-letter word and return the whole answer.

    Raises:
        OSError: nobody listens, the answer did not end in time, or it is not a member's.
    """
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(word.encode("ascii"))
        answer = bytearray()
        while chunk := connection.recv(65536):
            answer += chunk
            if len(answer) > ANSWER_BYTES_MAX:
                raise WordError(f"{host}:{port} answered {word} with over {ANSWER_BYTES_MAX} bytes")
    return answer.decode("utf-8", "replace")


@dataclass(slots=True)
class MemberStatus:
    """What one member says about itself; fields that it did not say are None."""

    address: str
    reachability: Reachability
    mode: str | None = None
    zxid: int | None = None
    keys: dict[str, str] = field(default_factory=dict)
    detail: str = ""

    @property
    def epoch(self) -> int | None:
        """The epoch it takes part in; of a ZooKeeper server the one its zxid is of."""
        named = self.number("zabd_epoch")
        return self.zxid >> 32 if named is None and self.zxid is not None else named

    def number(self, key: str) -> int | None:
        """An integer among the keys of `mntr`, named without its prefix ``zk_``."""
        text = self.keys.get(f"zk_{key}")
        try:
            return None if text is None else int(float(text))
        except ValueError:
            return None


def status_of(host: str, port: int, *, timeout_s: float = 2.0) -> MemberStatus:
    """Ask one member how it is; never raises for what a member does."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        answer = ask(host, port, "srvr", timeout_s=timeout_s)
        if "Mode:" not in answer:
            return _without_mode(address, answer)
        status = MemberStatus(address, Reachability.SERVING)
        _read_srvr(status, answer)
        status.keys = parse_mntr(ask(host, port, "mntr", timeout_s=timeout_s))
    except TimeoutError:
        return MemberStatus(address, Reachability.SILENT, detail=f"no answer in {timeout_s:g} s")
    except OSError as error:
        return MemberStatus(address, Reachability.DOWN, detail=error.strerror or str(error))
    return status


def mode_of(host: str, port: int, *, timeout_s: float = 2.0) -> str | None:
    """A member's role; None while it does not serve, does not answer or is not there."""
    status = MemberStatus("", Reachability.SERVING)
    try:
        _read_srvr(status, ask(host, port, "srvr", timeout_s=timeout_s))
    except OSError:
        return None
    return status.mode


def statuses_of(
    addresses: Sequence[tuple[str, int]], *, timeout_s: float = 2.0
) -> list[MemberStatus]:
    """Ask several members at once; the answers stand in the order of the addresses."""
    with ThreadPoolExecutor(max_workers=min(len(addresses), ADDRESS_COUNT_MAX)) as pool:
        return list(pool.map(lambda at: status_of(*at, timeout_s=timeout_s), addresses))


def parse_mntr(answer: str) -> dict[str, str]:
    """The keys and values of an answer to `mntr`; lines of any other shape are left out."""
    pairs = (line.partition("\t") for line in answer.splitlines())
    return {key: value for key, tab, value in pairs if tab}


def _without_mode(address: str, answer: str) -> MemberStatus:
    if NOT_SERVING in answer:
        return MemberStatus(address, Reachability.NOT_SERVING, detail="no quorum")
    said = answer.strip().partition("\n")[0][:80] or "the connection was closed"
    return MemberStatus(address, Reachability.SILENT, detail=f"not a member's answer: {said}")


def _read_srvr(status: MemberStatus, answer: str) -> None:
    for line in answer.splitlines():
        key, _, value = line.partition(": ")
        if key == "Mode":
            status.mode = value.strip()
        elif key == "Zxid":
            status.zxid = int(value, 16)
