"""One member of an ensemble as a program: opened, recovered, driven, and stopped in order.

`Server` runs unchanged on asyncio's loop, on uvloop and in the simulator. What it needs of the
world comes in: disks, clock, identity, chance, and a trace.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from zabd.model.errors import ConfigError, StorageError
from zabd.model.zxid import Zxid
from zabd.replica import Replica, ReplicaConfig
from zabd.replica.rebuild import TreeBuilder
from zabd.server.clock import Clock
from zabd.server.config import ServerConfig
from zabd.server.driver import Driver
from zabd.server.four_letter import answer
from zabd.server.http_link import HttpChannel
from zabd.server.identity import Identity
from zabd.server.logging import Trace
from zabd.server.loop import Loop
from zabd.server.metrics import MetricsPage
from zabd.server.report import MemberReport
from zabd.storage import OnDamage, Recovered, Storage, StorageConfig
from zabd.storage.disk import Disk
from zabd.zab.config import EnsembleConfig, RecoveredState

Post = Callable[[Callable[[], None]], None]
DiskFactory = Callable[[str, Post], Disk]
"""Opens the directory of this name; outcomes come back through the `Post`."""


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> None:
        """When everything submitted is finished."""
        ...

    def close_soon(self) -> None:
        """Without waiting for that: a device may never answer."""
        ...


class CannotListenError(ConfigError):
    """A port is taken, or an address is not this machine's."""


class Server:
    """One member.

    Start it once; `serve` then waits for its end. A server that has stopped is not started again.
    `loaded` is called whenever a whole tree has come from the disk: once at the start, and after
    each snapshot of a leader's.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        disk_factory: DiskFactory,
        clock: Clock,
        identity: Identity,
        rng: random.Random,
        trace: Trace = lambda _event, _fields: None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self._disk_factory = disk_factory
        self._clock = clock
        self._identity = identity
        self._rng = rng
        self._trace = trace
        self._loaded = loaded
        self._disks: list[Disk] = []
        self._storage: Storage | None = None
        self._driver: Driver | None = None
        self._pages: HttpChannel | None = None
        self._ended: asyncio.Future[None] | None = None
        self._stopping = False
        self._damaged: str | None = None  # why, when this incarnation began

    async def start(self) -> None:
        """Recover, listen, and take part in the ensemble.

        Raises:
            StorageError: the directory cannot be used; the sentence says why and what to do.
            CannotListenError: a port is taken.
        """
        loop: Loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        try:
            storage = self._open_storage(loop)
            builder = TreeBuilder()
            recovered = await self._recover(loop, storage, builder)
            driver = Driver(loop, self.config, storage, self._rng, self._trace, self.fail)
            self._driver = driver
            await self._listen(driver)
            driver.tree_loaded = self._loaded
            driver.start(self._make_replica(recovered, builder))
            report = MemberReport(self.config, driver, storage, self._clock, self._identity)
            report.why_damaged = self._damaged
            driver.answer_word = lambda word: answer(word, report)
            await self._listen_for_scrapers(loop, driver, report)
            self._loaded()
        except BaseException as error:
            self._ended = None
            # Of what failed the disks are at rest; who gives up waiting may have waited for them.
            self._close_everything(wait_for_disks=isinstance(error, Exception))
            raise
        started: dict[str, object] = {"client_port": driver.clients.port, "pid": self._identity.pid}
        if self._pages is not None:
            started["metrics_port"] = self._pages.port
        self._trace("started", started)

    async def serve(self) -> None:
        """Wait until the member stops; raises what made it stop if that was not `stop`."""
        assert self._ended is not None, "start comes first"
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Leave in order: peers are told at once, everything asked of the disk is finished.

        A disk that does not answer within the sync limit has failed (S12), and is not waited for.
        """
        if self._stopping or self._ended is None or self._ended.done():
            return
        self._stopping = True
        self._trace("stopping", {})
        assert self._driver is not None
        assert self._storage is not None
        self._driver.stop()
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storage.on_failure = lambda error: _settle(closed, error)
        self._storage.close(lambda: _settle(closed, None))
        in_order = True
        try:
            async with asyncio.timeout(self.config.tick_ms * self.config.sync_limit / 1000):
                await closed
        except (
            StorageError,
            TimeoutError,
        ) as error:  # what was acknowledged is durable all the same
            in_order = False
            why = str(error) or "the disk does not answer"
            self._trace("stop_not_in_order", {"level": "warning", "why": why})
        self._close_everything(wait_for_disks=in_order)
        self._trace("stopped", {})
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def driver(self) -> Driver:
        """What drives the replica, for tests and the simulator; not before `start`."""
        assert self._driver is not None, "start comes first"
        return self._driver

    @property
    def metrics_port(self) -> int | None:
        """Where the page for Prometheus is; None where nobody asked for one."""
        return None if self._pages is None else self._pages.port

    @property
    def standing(self) -> Mapping[str, object]:
        """State, epoch and zxid, for log lines; empty before `start`."""
        driver = self._driver
        if driver is None or not driver.started:
            return {}
        replica = driver.replica
        return {
            "state": replica.peer.state.name.lower(),
            "epoch": replica.peer.epoch,
            "zxid": Zxid(replica.tree.zxid),
        }

    # The steps of a start.

    def _open_storage(self, loop: Loop) -> Storage:
        config = self.config
        data = self._open_disk(loop, config.data_dir)
        log_dir = config.log_dir or config.data_dir
        same = os.path.realpath(log_dir) == os.path.realpath(config.data_dir)
        log = data if same else self._open_disk(loop, log_dir)
        self._storage = Storage(
            data,
            log,
            StorageConfig(
                segment_bytes=config.segment_bytes,
                snapshots_kept=config.snapshots_kept,
                on_damage=_on_damage(config),
                found_anew=config.found_anew,
            ),
            lambda: int(loop.time() * 1000),
            self._trace,
        )
        return self._storage

    def _open_disk(self, loop: Loop, root: str) -> Disk:
        def post(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(self._guarded, callback)

        disk = self._disk_factory(root, post)
        self._disks.append(disk)
        return disk

    async def _recover(self, loop: Loop, storage: Storage, builder: TreeBuilder) -> Recovered:
        outcome: asyncio.Future[Recovered] = loop.create_future()

        def recovered(result: Recovered | StorageError) -> None:
            if isinstance(result, StorageError):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

        began_s = loop.time()
        storage.recover(builder, self.config.member_id, None, recovered)
        result = await outcome
        facts = {
            "ms": int((loop.time() - began_s) * 1000),
            "znodes": len(builder.tree.nodes),
            **_told_of(result),
        }
        self._trace("recovered", facts)
        _check_found_anew(self.config.found_anew, result, self._trace)
        if result.damaged is not None:
            self._trace(
                "waits_to_be_repaired",
                {
                    "level": "warning",
                    "what": "this member neither votes nor serves until a leader that the others "
                    "elect without it has repaired it",
                    "why": result.damaged,
                },
            )
        self._damaged = result.damaged
        return result

    async def _listen(self, driver: Driver) -> None:
        config, me = self.config, self.config.me
        if not config.standalone:
            host = "*" if config.quorum_on_all_addresses else me.host
            await _bind(driver.quorum.listen(), f"the quorum port {host}:{me.quorum_port}")
            await _bind(driver.election.listen(), f"the election port {host}:{me.election_port}")
        client = f"{config.client_host or '*'}:{config.client_port}"
        await _bind(driver.clients.listen(), f"the client port {client}")

    async def _listen_for_scrapers(self, loop: Loop, driver: Driver, report: MemberReport) -> None:
        host, port = self.config.metrics_host, self.config.metrics_port
        if port is None:
            return
        page = MetricsPage(loop, self.config, driver, report)
        pages = HttpChannel(loop, {"/metrics": page.make}, self._trace)
        await _bind(pages.listen(host, port), f"the metrics port {host}:{port}")
        self._pages = pages

    def _make_replica(self, recovered: Recovered, builder: TreeBuilder) -> Replica:
        config = self.config
        replica_config = ReplicaConfig(
            ensemble=EnsembleConfig(
                me=config.member_id,
                voters=config.voters,
                observers=config.observers,
                tick_ms=config.tick_ms,
                init_limit=config.init_limit,
                sync_limit=config.sync_limit,
                new_cluster=config.new_cluster,
            ),
            min_session_timeout_ms=config.session_timeout_ms_min,
            max_session_timeout_ms=config.session_timeout_ms_max,
            request_bytes_max=config.request_bytes_max,
            snapshot_every_txns=config.snapshot_txns,
            super_digest=config.super_digest,
            sasl_users=config.sasl_users,
            skip_acl=config.skip_acl,
            enforce_quota=config.enforce_quota,
            outstanding_global_max=config.outstanding_share,
            large_request_threshold=config.large_request_threshold,
            large_request_bytes_max=config.large_request_bytes_max,
            throttled_op_wait_ms=config.throttled_op_wait_ms,
            connection_tokens_max=config.connection_tokens_max,
            connection_token_fill_ms=config.connection_token_fill_ms,
            connection_token_fill_count=config.connection_token_fill_count,
            enforced_auth=config.enforced_schemes,
            digest_algorithm=config.digest_algorithm,
            container_check_ms=config.container_check_ms,
            containers_per_minute_max=config.containers_per_minute_max,
            container_unused_ms_max=config.container_unused_ms_max,
            ttl_enabled=config.extended_types,
            local_sessions=config.local_sessions,
            local_sessions_upgrade=config.local_sessions_upgrade,
            read_only_enabled=config.read_only_enabled,
            config_text="" if config.standalone else config.membership(),
            prefix_components=config.metrics_prefix_components,
        )
        state = RecoveredState(
            recovered.accepted_epoch,
            recovered.current_epoch,
            recovered.cluster_id,
            recovered.delivered,
            recovered.tail,
            damaged=recovered.damaged is not None,
            founds_anew=recovered.cluster_id is not None
            and recovered.cluster_id == config.found_anew,
        )
        return Replica(
            replica_config,
            state,
            builder.tree,
            self._rng,
            self._clock,
            self._trace,
            replayed=(builder.replayed_txns, builder.replayed_bytes),
        )

    # The end.

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001  (whatever it is, this incarnation is over)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End this incarnation at once; `serve` raises the error."""
        if self._ended is None or self._ended.done() or self._stopping:
            return
        self._trace("failed", {"level": "error", "why": str(error) or repr(error)})
        self._ended.set_exception(error)
        self._ended.exception()  # whoever serves hears of it; nobody else has to
        # The disk may be what failed, and hang. A loop that waits for it cuts no link, and is deaf
        # to signals: the process would neither end nor let the others elect.
        self._close_everything(wait_for_disks=False)

    def _close_everything(self, *, wait_for_disks: bool) -> None:
        if self._pages is not None:
            self._pages.close()
        if self._driver is not None:
            self._driver.stop()
        disks, self._disks = self._disks, []
        for disk in disks:
            if not isinstance(disk, _Closable):
                continue  # a simulated one ends with its machine
            if wait_for_disks:
                disk.close()
            else:
                disk.close_soon()


def _on_damage(config: ServerConfig) -> OnDamage:
    """Only a member that has other voters beside it can be repaired."""
    if config.give_up_damaged:
        return OnDamage.GIVE_UP
    others = [voter for voter in config.voters if voter != config.member_id]
    return OnDamage.REPAIR if others else OnDamage.REFUSE


def _told_of(found: Recovered) -> dict[str, object]:
    """What the log says of a directory.

    `epoch` and `logged` are what an election compares, so an operator can compare copies by them:
    acknowledged writes may stand in the tail, beyond `delivered`.
    """
    return {
        "epoch": found.current_epoch,
        "delivered": found.delivered.zxid,
        "logged": found.tail[-1].last if found.tail else found.delivered.zxid,
        "tail": len(found.tail),
        "empty": found.empty,
        "cluster": found.cluster_id.hex() if found.cluster_id else None,
    }


def _check_found_anew(given: bytes | None, found: Recovered, trace: Trace) -> None:
    """A directory that is not what the operator named is no beginning of anything."""
    if given is None:
        return
    if found.damaged is not None:
        raise StorageError(
            f"--found-anew: this directory is damaged ({found.damaged}); take one that is whole, "
            "or give up what is damaged here first (--give-up-damaged)"
        )
    if found.cluster_id is None:
        raise StorageError(
            "--found-anew: this directory belongs to no cluster, so nothing can begin with it; "
            "start the member whose directory is to be the beginning with this option"
        )
    if found.cluster_id != given:
        what = (
            "--found-anew does nothing: this directory belongs to another cluster, because that "
            "was another member's, or because the new one is founded; leave the option out"
        )
        trace("founds_nothing", {"level": "warning", "what": what, "named": given.hex()})


async def _bind(listening: Awaitable[None], what: str) -> None:
    try:
        await listening
    except OSError as error:
        # The resolver's numbers are negative, and not of the system's table.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise CannotListenError(f"cannot listen on {what}: {reason}") from error


def _settle(future: asyncio.Future[None], error: StorageError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
