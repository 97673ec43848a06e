"""Quotas, as a client keeps them: ordinary znodes below /zookeeper/quota.

A member with quotas counts and, where `enforceQuota` says so, refuses; this only writes the limits
and reads the usage. Paths are whole server paths: a client with a chroot cannot see the place.

Client protocol, section 17.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from zabd.model.errors import LocalProtocolError, NodeExistsError, NoNodeError, NotEmptyError
from zabd.model.paths import QUOTA_PATH, ROOT, SYSTEM_PATH, parent_of
from zabd.model.quotas import (
    Limits,
    Usage,
    limits_path,
    parse_limits,
    parse_usage,
    stats_path,
)

if TYPE_CHECKING:
    from zabd.client.client import Client


class QuotaReport(NamedTuple):
    """A quota: what is allowed, and what is used as the member that answers counts it."""

    limits: Limits
    usage: Usage


async def get_quota(client: Client, path: str) -> QuotaReport | None:
    """The quota on exactly `path`, None if there is none."""
    _check(client, path)
    try:
        limits = parse_limits((await client.get(limits_path(path))).data)
    except NoNodeError:
        return None
    try:
        usage = parse_usage((await client.get(stats_path(path))).data)
    except NoNodeError:
        usage = Usage(0, 0)  # nobody has asked for it to be shown
    return QuotaReport(limits, usage)


async def set_quota(client: Client, path: str, limits: Limits) -> None:
    """Set all limits of the quota on `path`, which need not exist; there is one from then on."""
    _check(client, path)
    await client.ensure_path(parent_of(limits_path(path)))
    try:
        await client.create(limits_path(path), limits.text)
    except NodeExistsError:
        await client.set(limits_path(path), limits.text)
    with suppress(NodeExistsError):
        await client.create(stats_path(path), Usage(0, 0).text)


async def delete_quota(client: Client, path: str) -> bool:
    """End the quota on `path`; False if there was none."""
    _check(client, path)
    ended = await _delete(client, limits_path(path))
    await _delete(client, stats_path(path))
    # And what was made on the way, as far as no other quota is below it.
    at = parent_of(limits_path(path))
    while at != QUOTA_PATH and await _delete(client, at):
        at = parent_of(at)
    return ended


async def _delete(client: Client, path: str) -> bool:
    try:
        await client.delete(path)
    except (NoNodeError, NotEmptyError):
        return False
    return True


def _check(client: Client, path: str) -> None:
    if client.chroot != ROOT:
        raise LocalProtocolError("quotas are on whole server paths: connect without a chroot")
    if path == ROOT or (path + "/").startswith(SYSTEM_PATH + "/"):
        raise LocalProtocolError(f"{path} cannot have a quota: name a path below the root")
