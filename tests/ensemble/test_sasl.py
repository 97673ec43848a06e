"""SASL DIGEST-MD5 between our client, kazoo and real servers, both ours and ZooKeeper's."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError as KazooAuthFailedError
from kazoo.security import make_acl
from tests.ensemble.harness import BOTH, kazoo, serving_on
from tests.ensemble.zabctl import Script

from zabd.cli.members import Ensemble
from zabd.cli.output import ExitStatus
from zabd.client import SyncClient, connect
from zabd.model.acl import CREATOR_ALL_ACL, Acl
from zabd.model.errors import AuthFailedError, NoAuthError, SessionClosedRequireSaslAuthError

pytestmark = pytest.mark.ensemble

JAAS = """Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_bob="a-secret-of-bob";
};
"""
BOB = ("bob", "a-secret-of-bob")


@pytest.fixture(scope="module", params=BOTH)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ensemble]:
    """One member that knows bob."""
    folder = tmp_path_factory.mktemp("sasl")
    users = folder / "jaas.conf"
    users.write_text(JAAS, encoding="utf-8")
    settings = {
        "java.security.auth.login.config": str(users),
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    with serving_on(request.param, folder, voters=1, settings=settings) as ensemble:
        yield ensemble


def test_a_user_with_a_password_is_somebody(server: Ensemble) -> None:
    """What is theirs is theirs alone, and they are who they are after a reconnect too."""

    async def main() -> None:
        async with (
            connect(server.hosts, sasl=BOB) as bob,
            connect(server.hosts) as anybody,
        ):
            await bob.create("/bobs", b"1", acl=CREATOR_ALL_ACL)
            assert (await bob.get_acl("/bobs"))[0] == (Acl(31, "sasl", "bob"),)
            with pytest.raises(NoAuthError):
                await anybody.get("/bobs")
            bob._require_driver().perform(bob._session.leave("a test", bob.now_ms()))
            assert (await bob.get("/bobs")).data == b"1"
            await bob.delete("/bobs")

    asyncio.run(main())


@pytest.mark.parametrize("credentials", [("bob", "guess"), ("eve", "guess")])
def test_who_is_not_known_is_told_so_at_once(
    server: Ensemble, credentials: tuple[str, str]
) -> None:
    """Trying again, at this server or another one, would not help."""
    client = SyncClient(server.hosts, sasl=credentials, connect_timeout=30)
    with pytest.raises(AuthFailedError, match="does not accept"):
        client.start()


def test_kazoo_and_we_are_the_same_user(server: Ensemble) -> None:
    """A fleet may move from one client to the other, host by host."""
    options = {"mechanism": "DIGEST-MD5", "username": BOB[0], "password": BOB[1]}
    with kazoo(server.hosts, sasl_options=options) as client:
        client.create("/shared", b"2", acl=(make_acl("sasl", credential="bob", all=True),))
        with SyncClient(server.hosts, sasl=BOB) as bob:
            assert bob.get("/shared").data == b"2"
            bob.delete("/shared")

    stranger = KazooClient(server.hosts, sasl_options=options | {"password": "guess"})
    with pytest.raises(KazooAuthFailedError):
        # It takes itself for connected before the server has answered.
        stranger.start(timeout=15)
        stranger.get("/")
    stranger.stop()
    stranger.close()


def test_no_password_is_in_a_log(server: Ensemble) -> None:
    """Nor anywhere else in the folder, but in the file that holds them."""
    with SyncClient(server.hosts, sasl=BOB):
        pass
    folder = Path(server.member(1).config).parent
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "jaas.conf":
            assert BOB[1].encode() not in path.read_bytes(), path


def test_a_server_without_sasl_is_no_server_for_a_user(tmp_path: Path) -> None:
    """Who asks for SASL wants to know whom they talk to."""
    with serving_on("zabd", tmp_path, voters=1) as ensemble:
        client = SyncClient(ensemble.hosts, sasl=BOB)
        with pytest.raises(AuthFailedError, match="the server has no SASL"):
            client.start()


def test_where_it_is_required_others_are_not_served(tmp_path: Path) -> None:
    """`sessionRequireClientSASLAuth`, on our members."""
    users = tmp_path / "jaas.conf"
    users.write_text(JAAS, encoding="utf-8")
    settings = {
        "java.security.auth.login.config": str(users),
        "sessionRequireClientSASLAuth": "true",
    }
    with serving_on("zabd", tmp_path, voters=1, settings=settings) as ensemble:
        refused = pytest.raises(SessionClosedRequireSaslAuthError)
        with SyncClient(ensemble.hosts) as anybody, refused:
            anybody.set("/", b"")
        with SyncClient(ensemble.hosts, sasl=BOB) as bob:
            assert bob.exists("/") is not None


def test_zabctl_proves_who_it_is(server: Ensemble) -> None:
    """Said as an option, or in the environment, where other users do not read it."""
    script = Script(server.hosts)
    script.environment["ZABD_SASL"] = ":".join(BOB)
    script.run("create", "/of-bob", "1", "--acl", "sasl:bob:cdrwa")
    assert script.output("get", "/of-bob", "--sasl", ":".join(BOB)) == "1"
    script.run("get", "/of-bob", "--sasl", "bob:guess", status=ExitStatus.REFUSED)
    script.run("delete", "/of-bob")
    del script.environment["ZABD_SASL"]
    script.run("get", "/", "--sasl", "bob", status=ExitStatus.USAGE)
