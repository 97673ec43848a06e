"""The command lines that operators have in their runbooks: Debian's zkCli.sh and the C `cli_mt`.

What they print comes from their own code, so each line expected here was first seen on Debian's
ZooKeeper; ``COMPAT_SERVER=java`` shows it again.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.compat.conversation import Conversation
from tests.compat.ensembles import ensemble_of_three, member_of
from tests.compat.tools import debian, needed

from zabd.cli.members import Ensemble, Member
from zabd.cli.words import ask

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

ZKCLI = "/usr/share/zookeeper/bin/zkCli.sh"
CLI_MT = "/usr/lib/zookeeper/bin/cli_mt"
ONE_SHOT_TIMEOUT_S = 60.0
SESSION = re.compile(r"sid=(0x[0-9a-f]+),")


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Three members that serve."""
    with ensemble_of_three(tmp_path) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def zkcli() -> str:
    """Where Debian's zkCli.sh is."""
    needed(lambda: debian("zookeeper"))
    return ZKCLI


@pytest.fixture(scope="module")
def cli_mt() -> str:
    """Where Debian's cli_mt is."""
    needed(lambda: debian("zookeeper-bin"))
    return CLI_MT


def test_zkcli_one_shot(ensemble: Ensemble, zkcli: str) -> None:
    """A command after the address is run, its result printed, its failure the exit code."""

    def run(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [zkcli, "-server", ensemble.members[0].address, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=ONE_SHOT_TIMEOUT_S,
        )
        return done.returncode, done.stdout.strip().splitlines()[-1]

    assert run("ls", "/") == (0, "[zookeeper]")
    assert run("create", "/one", "shot") == (0, "Created /one")
    assert run("get", "/one") == (0, "shot")
    assert run("sync", "/one") == (0, "Sync is OK")
    assert run("stat", "/one") == (0, "numChildren = 0")
    assert run("ls", "/absent") == (1, "Node does not exist: /absent")
    assert run("get", "/absent") == (1, "Node does not exist: /absent")
    assert run("create", "/one") == (1, "Node already exists: /one")
    assert run("set", "-v", "7", "/one", "x") == (1, "version No is not valid : /one")
    assert run("delete", "/") == (1, "Arguments are not valid : /")
    assert run("deleteall", "/one")[0] == 0
    assert run("whoami")[1] == "ip: 127.0.0.1"
    assert run("bogus")[0] == 127


def test_zkcli_in_a_conversation(ensemble: Ensemble, zkcli: str) -> None:
    """All kinds of nodes, versions, watches, ACLs, and a member that dies in between."""
    with Conversation([zkcli, "-server", ensemble.hosts]) as cli:
        cli.hear("state:SyncConnected")
        cli.ask("create /z data", "Created /z")
        cli.ask("create -e /z/e", "Created /z/e")
        cli.ask("create /z/e/child", "Ephemerals cannot have children: /z/e/child")
        cli.ask("create -s /z/s-", "Created /z/s-0000000001")
        cli.ask("create -s -e /z/s-", "Created /z/s-0000000002")
        cli.ask("create -c /z/c", "Created /z/c")
        cli.ask("create /z/c/child", "Created /z/c/child")
        cli.ask("delete /z/c/child")  # which leaves a container that was used
        cli.ask("create -t 500 /z/t x", "Created /z/t")
        cli.ask("set -v 5 /z x", "version No is not valid : /z")
        cli.ask("set -s -v 0 /z new", "dataVersion = 1")
        cli.ask("delete /z", "Node not empty: /z")

        cli.ask("get -w /z", "new")
        cli.ask("set /z newer", "type:NodeDataChanged path:/z")
        cli.ask("ls -w /z", "e, s-0000000001, s-0000000002")
        cli.ask("create /z/child", "type:NodeChildrenChanged path:/z", "Created /z/child")
        cli.ask("stat -w /z/child", "numChildren = 0")
        cli.ask("delete /z/child", "type:NodeDeleted path:/z/child")
        cli.ask("addWatch -m PERSISTENT_RECURSIVE /z")
        cli.ask("create /z/deep", "type:NodeCreated path:/z/deep", "Created /z/deep")
        cli.ask("set /z/deep x", "type:NodeDataChanged path:/z/deep")
        cli.ask("removewatches /z", "type:PersistentWatchRemoved path:/z")

        cli.ask("addauth digest user:password")
        cli.ask("create /z/acl secret auth:user:password:cdrwa", "Created /z/acl")
        cli.ask("getAcl /z/acl", "'digest,'user:", ": cdrwa")
        cli.ask("whoami", "digest: user")
        with Conversation([zkcli, "-server", ensemble.hosts]) as stranger:
            stranger.hear("state:SyncConnected")
            stranger.ask("get /z/acl", "Insufficient permission : /z/acl")
            assert stranger.end("quit") == 1  # for what was refused
        cli.ask("getEphemerals /z", "[/z/e, /z/s-0000000002]")
        cli.ask("getAllChildrenNumber /z")

        cli.ask("get -w /z", "newer")
        _only_member_with_a_client(ensemble).kill()
        cli.ask_until("get /z/acl", "secret")
        cli.ask_until("getEphemerals /z", "[/z/e, /z/s-0000000002]")
        cli.ask_until("set /z newest", "type:NodeDataChanged path:/z")
        assert cli.end("quit") == 0
    # The ephemerals went with the session; the container and the TTL node in their own time.
    with Conversation([zkcli, "-server", ensemble.hosts]) as cli:
        cli.hear("state:SyncConnected")
        cli.ask("sync /z", "Sync is OK")
        cli.ask_until("ls /z", "[acl, deep, s-0000000001]")


def test_cli_mt_in_a_conversation(ensemble: Ensemble, cli_mt: str) -> None:
    """The same through the C client's own command line."""
    with Conversation([cli_mt, "-h", ensemble.hosts]) as cli:
        connected = cli.hear("Got a new session id: ")
        [session] = re.findall(r"session id: (0x[0-9a-f]+)", connected)
        cli.ask("create /m", "[/m]: rc = 0")
        cli.ask("create +e /m/e", "[/m/e]: rc = 0")
        cli.ask("create +s /m/s-", "[/m/s-]: rc = 0", "name = /m/s-0000000001")
        cli.ask("create +es /m/s-", "name = /m/s-0000000002")
        cli.ask("create +c /m/c", "[/m/c]: rc = 0")
        cli.ask("create +t=500 /m/t", "[/m/t]: rc = 0")
        cli.ask("create /m/e/child", "[/m/e/child]: rc = -108")
        cli.ask("create /m", "[/m]: rc = -110")
        cli.ask("set /m hello", "/m: rc = 0", "version=1")
        cli.ask("get /m", "/m: rc = 0", "value_len = 5", "hello")
        cli.ask("get /absent", "/absent: rc = -101")
        cli.ask("wexists /m")
        cli.ask("set /m again", "Watcher CHANGED_EVENT", "for path /m")
        cli.ask("sync /m", "[/m]: rc = 0")
        member_of(ensemble, session).kill()
        cli.ask_until("get /m", "again")
        cli.ask("ls /m", "/m: rc = 0")
        for child in ("e", "s-0000000001", "s-0000000002"):
            cli.hear(f"\t{child}\n")
        assert cli.end("quit") == 0


def test_cli_mt_one_shot(ensemble: Ensemble, cli_mt: str) -> None:
    """`-c` runs one command."""
    done = subprocess.run(
        [cli_mt, "-h", ensemble.members[0].address, "-c", "ls /"],
        capture_output=True,
        text=True,
        check=False,
        timeout=ONE_SHOT_TIMEOUT_S,
    )

    assert done.returncode == 0
    assert "\tzookeeper\n" in done.stdout + done.stderr


def _only_member_with_a_client(ensemble: Ensemble) -> Member:
    """Where the one session is that there is, apart from those that are just ending."""
    deadline = time.monotonic() + 10.0
    while True:
        found = [
            member
            for member in ensemble.running()
            if SESSION.search(ask("127.0.0.1", member.client_port, "cons"))
        ]
        if len(found) == 1:
            return found[0]
        assert time.monotonic() < deadline, f"{len(found)} members have clients"
        time.sleep(0.05)
