"""The pytest plugin: `zab_server`, `zab_ensemble` and `zab_client`, and their marker.

The members are started when a test first asks for them, and shared by the tests of a run: each has
a chroot of its own. A test that does something to a member or a link gets rid of them; the next one
finds fresh ones. This module is imported by every pytest run, so it imports nothing else of zabd.
"""

import inspect
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from zabd.client import Client
    from zabd.client.sync import SyncClient
    from zabd.testing.ensemble import Backend, Pool, Shape, ZabEnsemble

MARKER = (
    "zab(members=3, observers=0, fresh=False, **settings): what `zab_ensemble` is made of; "
    "settings are those of zoo.cfg"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--zab-inprocess`."""
    group = parser.getgroup("zabd", "ZooKeeper ensembles")
    group.addoption(
        "--zab-inprocess",
        action="store_true",
        help="run the members of zab_server and zab_ensemble in this process, not in their own",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and see who runs coroutine tests."""
    config.addinivalue_line("markers", MARKER)
    if config.pluginmanager.has_plugin("asyncio"):  # pytest-asyncio
        from zabd.testing import asyncio_clients

        config.pluginmanager.register(asyncio_clients, "zabd-asyncio")


@pytest.fixture(scope="session")
def _zab_pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Pool]":
    # The backend first: while a nursery imports what it needs, so does this process.
    backend = _start_backend(in_process=request.config.getoption("--zab-inprocess"))
    from zabd.testing.ensemble import Pool

    pool = Pool(tmp_path_factory.mktemp("zabd"), backend)
    yield pool
    pool.close()


def _start_backend(*, in_process: bool) -> "Backend":
    if in_process:
        from zabd.testing.inprocess import InProcessLauncher

        return InProcessLauncher()
    from zabd.testing.launcher import ProcessLauncher

    return ProcessLauncher()


@pytest.fixture
def zab_ensemble(request: pytest.FixtureRequest, _zab_pool: "Pool") -> "Iterator[ZabEnsemble]":
    """Three members that serve, or what the test's marker `zab` says."""
    yield from _given(request, _zab_pool, members=3)


@pytest.fixture
def zab_server(request: pytest.FixtureRequest, _zab_pool: "Pool") -> "Iterator[ZabEnsemble]":
    """One member, standing alone."""
    yield from _given(request, _zab_pool, members=1)


def _given(
    request: pytest.FixtureRequest, pool: "Pool", *, members: int
) -> "Iterator[ZabEnsemble]":
    from zabd.testing.ensemble import ZabEnsemble

    shape, fresh = _wanted(request, members)
    cluster = pool.take(shape, fresh=fresh)
    ensemble = ZabEnsemble(cluster, cluster.make_chroot())
    try:
        yield ensemble
    finally:
        ensemble.release()
        pool.settle(shape)


def _wanted(request: pytest.FixtureRequest, members: int) -> "tuple[Shape, bool]":
    from zabd.testing.ensemble import Shape

    marker = request.node.get_closest_marker("zab")
    options: dict[str, Any] = {"members": members, **(marker.kwargs if marker else {})}
    if members == 1:
        options["members"] = 1
    fresh = options.pop("fresh", False)
    count, observers = options.pop("members"), options.pop("observers", 0)
    settings = tuple(sorted((key, str(value)) for key, value in options.items()))
    return Shape(count, 0 if members == 1 else observers, settings), fresh


@pytest.fixture
def zab_client(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - one of two
    """A connected client: asyncio's in a coroutine test, a blocking one in any other.

    It is a client of `zab_ensemble` if the test asks for that as well, else of `zab_server`. For
    `cut` and `drop` its name is ``client``.
    """
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        return request.getfixturevalue("zab_async_client")
    return request.getfixturevalue("zab_blocking_client")


@pytest.fixture
def zab_blocking_client(request: pytest.FixtureRequest) -> "SyncClient":
    """A connected blocking client, whatever the test is."""
    return _servers(request).client("client")


@pytest.fixture
def zab_async_client(request: pytest.FixtureRequest) -> "Client":
    """A connected asyncio client on the test's loop, for pytest-asyncio or anyio."""
    _servers(request)  # before any loop runs
    if "anyio_backend" in request.fixturenames:
        name = "_zab_client_of_anyio"
    elif request.config.pluginmanager.has_plugin("asyncio"):
        name = "_zab_client_of_asyncio"
    else:
        pytest.fail("zab_client in a coroutine test needs pytest-asyncio or anyio to run it")
    client: Client = request.getfixturevalue(name)
    return client


@pytest.fixture
async def _zab_client_of_anyio(
    request: pytest.FixtureRequest, anyio_backend_name: str
) -> "AsyncIterator[Client]":
    if anyio_backend_name != "asyncio":
        pytest.skip(
            f"zabd's client runs on asyncio, and this test's backend is {anyio_backend_name}"
        )
    async for client in connected_client(request):
        yield client


async def connected_client(request: pytest.FixtureRequest) -> "AsyncIterator[Client]":
    """What `zab_async_client` is, on whichever loop this runs."""
    async with _servers(request).connect("client") as client:
        yield client


def _servers(request: pytest.FixtureRequest) -> "ZabEnsemble":
    wants_ensemble = "zab_ensemble" in request.fixturenames
    servers: ZabEnsemble = request.getfixturevalue(
        "zab_ensemble" if wants_ensemble else "zab_server"
    )
    return servers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the members' logs to the report of a test that failed."""
    report = yield
    if report.failed and call.when == "call":
        values = getattr(item, "funcargs", {})
        for name in ("zab_ensemble", "zab_server"):
            if name in values:
                report.sections.append(("zabd's members", values[name].logs()))
    return report
