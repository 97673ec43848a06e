"""Callers of one client that want the same key: one of them at a time goes to the ensemble.

Invariants
    I1  A session has one lock znode per key at most; the search after a lost create relies on it.
    I2  When the one at the front ends with a record, all who queued behind it by then share it;
        when it ends without, the next one goes.

Dedup recipe, section 5.0.
"""

import asyncio
from collections import deque
from typing import TypeAlias
from weakref import WeakKeyDictionary

from zabd.client.client import Client
from zabd.client.recipes.dedup.records import Result

_CLIENT_ID_BITS = 64
_Waiter: TypeAlias = "asyncio.Future[Result | None]"


class Flight:
    """The local queue for one key."""

    def __init__(self) -> None:
        self.busy = False
        self._waiters: deque[_Waiter] = deque()

    async def join(self) -> Result | None:
        """Wait for the front of the queue: None means that the caller is there and must `end`."""
        if not self.busy:
            self.busy = True
            return None
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result() is None:
                self.end(None)  # the front came to us when we had left already
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def end(self, record: Result | None) -> None:
        """Leave the front, with the record that those behind may share (I2)."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(record)
                if record is None:
                    return
        self.busy = False

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return not self.busy and not self._waiters


class Flights:
    """The local queues of one client, by the path of the key."""

    def __init__(self) -> None:
        self._by_path: dict[str, Flight] = {}

    def of(self, path: str) -> Flight:
        """The queue for a key."""
        for idle in [path for path, flight in self._by_path.items() if flight.idle]:
            del self._by_path[idle]
        return self._by_path.setdefault(path, Flight())


_flights: WeakKeyDictionary[Client, Flights] = WeakKeyDictionary()


def flights_of(client: Client) -> Flights:
    """The queues of a client, shared by every `Dedup` on it (I1)."""
    return _flights.setdefault(client, Flights())


_client_ids: WeakKeyDictionary[Client, str] = WeakKeyDictionary()


def client_id_of(client: Client) -> str:
    """A name for this client, whatever sessions it has: for people who compare records."""
    known = _client_ids.get(client)
    if known is None:
        known = _client_ids[client] = f"{client.rng.getrandbits(_CLIENT_ID_BITS):016x}"
    return known
