"""The asyncio client, its blocking facade and its recipes."""

from zabd.client.client import Client, connect
from zabd.client.effects import Credentials, SessionState
from zabd.client.events import EventStream, StateChange
from zabd.client.forks import ForkedClientError
from zabd.client.retry import RetryPolicy
from zabd.client.sync import SyncClient, SyncTransaction
from zabd.client.transaction import Transaction

__all__ = [
    "Client",
    "Credentials",
    "EventStream",
    "ForkedClientError",
    "RetryPolicy",
    "SessionState",
    "StateChange",
    "SyncClient",
    "SyncTransaction",
    "Transaction",
    "connect",
]
