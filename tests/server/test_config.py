"""Claims about configuration: what wins, what is refused, and what a refusal says."""

from collections.abc import Mapping

import pytest

from zabd.model.errors import ConfigError
from zabd.server.config import ServerConfig
from zabd.server.keys import IGNORED, KEYS
from zabd.server.resolution import Resolved, Sources, resolve
from zabd.server.zoo_cfg import Member, Setting, parse_member

THREE = """
# a comment
tickTime=2000
dataDir=/var/lib/zabd
server.1=alpha:2888:3888;2181
server.2=beta:2888:3888:participant;127.0.0.1:2182
server.3=[fe80::3]:2888:3888:observer;[::1]:2183
server.4=gamma:2888:3888
server.5=delta:2888:3888
"""


def load(
    text: str | None = None, *, options: Mapping[str, str] | None = None, **more: object
) -> Resolved:
    """Resolve what is given; `files` are the myid files that there are."""
    files: dict[str, str] = more.pop("files", {})  # type: ignore[assignment]
    name = "zoo.cfg" if text is not None else None
    sources = Sources(file_name=name, file_text=text, options=options, **more)  # type: ignore[arg-type]
    return resolve(sources, files.get)


def test_nothing_but_an_id_is_a_member_of_three_on_loopback() -> None:
    """`zabd --id 2` in a terminal of its own is the first thing a newcomer types."""
    config, notices = load(member_id=2)

    assert config.me == Member(2, "127.0.0.1", 2882, 3882, False, "127.0.0.1", 2182)
    assert config.voters == (1, 2, 3)
    assert (config.client_host, config.client_port) == ("127.0.0.1", 2182)
    assert (config.data_dir, config.log_dir) == ("./zabd-data/2", None)
    assert (config.session_timeout_ms_min, config.session_timeout_ms_max) == (4_000, 40_000)
    assert config.words is not None
    assert "stat" in config.words
    assert "srst" not in config.words
    assert notices == ()


def test_standalone_is_an_ensemble_of_one() -> None:
    """It needs no id, and listens on loopback only."""
    config, notices = load(standalone=True)

    assert config.standalone
    assert (config.member_id, config.client_host, config.client_port) == (1, "127.0.0.1", 2181)
    assert notices == ()


def test_what_founding_anew_gives_up_is_said() -> None:
    """The option names the cluster that ends by it."""
    config, notices = load(member_id=1, found_anew="5f0c3a71")

    assert config.found_anew == bytes.fromhex("5f0c3a71")
    [notice] = notices
    assert notice.startswith("--found-anew: a new cluster begins with what this member has;")
    with pytest.raises(ConfigError, match="this is an observer"):
        load(
            "server.1=a:1:2;3\nserver.2=b:1:2;3\nserver.3=c:1:2:observer;3",
            member_id=3,
            found_anew="5f0c3a71",
        )


def test_a_larger_default_ensemble_is_one_option() -> None:
    """--ensemble 5 needs no file either."""
    config, _ = load(member_id=5, ensemble=5)

    assert config.voters == (1, 2, 3, 4, 5)
    assert (config.me.quorum_port, config.me.election_port) == (2885, 3885)


def test_a_file_gives_every_form_of_a_member() -> None:
    """Old form, role, IPv6 in brackets, client address: all of them in one file."""
    config, _ = load(THREE, member_id=3)

    assert config.me == Member(3, "fe80::3", 2888, 3888, True, "::1", 2183)
    assert config.voters == (1, 2, 4, 5)
    assert config.observers == (3,)
    assert config.members[0].client_host is None
    assert config.members[3] == Member(4, "gamma", 2888, 3888)
    assert config.membership().splitlines()[:4] == [
        "server.1=alpha:2888:3888:participant;0.0.0.0:2181",
        "server.2=beta:2888:3888:participant;127.0.0.1:2182",
        "server.3=[fe80::3]:2888:3888:observer;[::1]:2183",
        "server.4=gamma:2888:3888:participant",
    ]
    assert config.membership().endswith("\nversion=0")


def test_the_old_form_takes_its_client_port_from_its_own_key() -> None:
    """Files older than dynamic configuration have one clientPort for the member that reads them."""
    config, _ = load("server.1=a:1:2\nserver.2=b:1:2\nserver.3=c:1:2\nclientPort=7", member_id=2)

    assert (config.client_host, config.client_port) == (None, 7)
    assert config.me.client_port == 7


def test_a_file_without_members_is_standalone() -> None:
    """As with ZooKeeper; it then listens on every address unless clientPortAddress says where."""
    config, _ = load("clientPort=7\ndataDir=/d", files={"/d": "9\n"})
    alone, _ = load("clientPort=7\nclientPortAddress=127.0.0.1")

    assert (config.standalone, config.member_id, config.client_host) == (True, 9, None)
    assert (alone.client_host, alone.client_port) == ("127.0.0.1", 7)


def test_the_id_may_come_from_myid() -> None:
    """The file beside the data is how ZooKeeper's own scripts say it."""
    config, _ = load(THREE, files={"/var/lib/zabd": " 2\n"})

    assert config.member_id == 2


def test_command_line_wins_over_environment_over_file_over_default() -> None:
    """Each layer is looked at for each key on its own."""
    text = "tickTime=100\ninitLimit=20\nsyncLimit=30"
    environment = {"ZABD_TICKTIME": "101", "ZABD_INITLIMIT": "21", "PATH": "/bin"}
    config, _ = load(text, environment=environment, options={"tickTime": "102"})

    assert (config.tick_ms, config.init_limit, config.sync_limit) == (102, 21, 30)
    assert (config.session_timeout_ms_min, config.session_timeout_ms_max) == (204, 2_040)
    assert config.snapshots_kept == 3


def test_a_client_port_given_later_replaces_the_one_of_the_specification() -> None:
    """The command line wins, also over `;port`."""
    config, _ = load(THREE, member_id=1, options={"clientPort": "99"})

    assert config.client_port == 99
    assert config.me.client_port == 99


def test_every_key_can_be_set_by_the_environment() -> None:
    """Dots become underscores; members too can be given this way."""
    environment = {
        "ZABD_4LW_COMMANDS_WHITELIST": "stat, ruok",
        "ZABD_JUTE_MAXBUFFER": "4194304",
        "ZABD_SERVER_1": "a:1:2;3",
        "ZABD_ID": "1",
    }
    config, notices = load(environment=environment)

    assert config.words == ("stat", "ruok")
    assert config.request_bytes_max == 4_194_304
    assert config.client_port == 3
    assert notices == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tickTime=fast", "zoo.cfg, line 1: tickTime=fast is not a whole number from 1 to 3600000"),
        (
            "\n#\nclientPort=0",
            "zoo.cfg, line 3: clientPort=0 is not a whole number from 1 to 65535",
        ),
        (
            "jute.maxbuffer=8388609",
            "jute.maxbuffer=8388609 is not a whole number from 1024 to 8388608",
        ),
        ("standaloneEnabled=maybe", "standaloneEnabled=maybe is not true or false"),
        ("4lw.commands.whitelist=status", "is not * or words like stat,srvr"),
        ("server.1=alpha:2888", "server.1=alpha:2888 is not host:quorumPort:electionPort"),
        ("server.0=a:1:2", "N in server.N is a number from 1 to 254"),
        ("server.x=a:1:2", "N in server.N is a number from 1 to 254"),
        ("server.1=a:1:99999", "is not host:quorumPort:electionPort"),
        ("server.1=a:1:2:leader", "is not host:quorumPort:electionPort"),
        ("server.1=a:1:2|b:1:2", "one address and one client port"),
        ("server.1=a:1:2;3;4", "one address and one client port"),
        ("server.1=a:1:2\nserver.1=b:1:2", "line 2: server.1=b:1:2 is not the first server.1"),
        ("server.1=a:1:1", "a:1 is both the quorum port of server.1 and the election port"),
        ("server.1=a:1:2\nserver.2=a:2:3", "a:2 is both the election port of server.1"),
        ("server.1=a:1:2;5\nclientPort=6", "clientPort=6 is not the client port that server.1"),
        ("server.1=a:1:2:observer", "no voter"),
        ("server.1=a:1:2\nstandaloneEnabled=false", "standaloneEnabled=false"),
        ("server.1=a:1:2\npeerType=observer", "peerType=observer is not what server.1 says"),
        ("minSessionTimeout=9000\nmaxSessionTimeout=8000", "line 1: minSessionTimeout=9000"),
        ("maxSessionTimeout=8", "line 1: maxSessionTimeout=8 is not possible"),
        ("group.1=1:2:3", "group.1 is not supported: every voter counts the same"),
        ("secureClientPort=1", "secureClientPort=1 is not offered yet, for want of TLS: name a"),
        ("secureClientPort=1\nserver.1=a:1:2", "secureClientPort=1 is not offered yet"),
        ("sslQuorum=true", "sslQuorum is not supported: members talk to each other without TLS"),
        ("zookeeper.sslQuorum=TRUE", "zookeeper.sslQuorum is not supported"),
        ("quorum.auth.learnerRequireSasl=true", "members do not prove to each other who they are"),
        ("server.1=a:1:2\nserver.01=b:1:2", "line 2: server.1=b:1:2 is not the first server.1"),
        (f"server.{'1' * 5000}=a:1:2", "N in server.N is a number from 1 to 254"),
        ("=5", "zoo.cfg, line 1: '=5' is not key=value"),
        ("dataDir=", "dataDir= is not a directory"),
    ],
)
def test_a_bad_value_is_refused_with_place_key_and_value(text: str, complaint: str) -> None:
    """The sentence is all an operator has: it names what to change, and into what."""
    with pytest.raises(ConfigError) as refusal:
        load(text)

    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({}, "which member is this? Give --id, one of 1, 2, 3"),
        ({"member_id": 4}, "command line, --id: 4 is no member of the ensemble, which is 1, 2, 3"),
        ({"member_id": 0, "standalone": True}, "command line, --id: 0 is not a member id"),
        ({"ensemble": 0}, "--ensemble 0 is not from 1 to 99"),
        ({"member_id": 1, "found_anew": "mine"}, "--found-anew 'mine': the id of a cluster is he"),
        ({"member_id": 1, "found_anew": ""}, "--found-anew '': the id of a cluster is hexadecimal"),
        ({"ensemble": 3, "standalone": True}, "--ensemble says who the members are"),
        ({"environment": {"ZABD_TICKTIME": "x"}}, "environment, ZABD_TICKTIME: tickTime=x is not"),
        ({"options": {"tickTime": "x"}}, "command line, --tickTime: tickTime=x is not"),
        ({"options": {"dataDir": "/d"}, "files": {"/d": "one"}}, "/d/myid: 'one' is not a member"),
        ({"options": {"dataDir": "/d"}, "files": {"/d": "7" * 5000}}, "/d/myid: '7777"),
        ({"options": {"dataDir": "/d"}, "files": {"/d": "7"}}, "/d/myid: 7 is no member"),
    ],
)
def test_options_are_held_to_the_same(more: dict[str, object], complaint: str) -> None:
    """Whatever the source of a value, the refusal says which one it was."""
    with pytest.raises(ConfigError) as refusal:
        load(**more)  # type: ignore[arg-type]

    assert complaint in str(refusal.value)


def test_an_unknown_key_is_named_and_does_not_stop_the_member() -> None:
    """A typing error must be seen; a key of a newer ZooKeeper must not keep a member down."""
    _, notices = load("tickTimes=5", environment={"ZABD_SYNCLIMT": "1"})

    assert notices == (
        "zoo.cfg, line 1: unknown key tickTimes (did you mean tickTime?)",
        "environment, ZABD_SYNCLIMT: unknown key ZABD_SYNCLIMT (did you mean ZABD_SYNCLIMIT?)",
    )


@pytest.mark.parametrize("key", [*IGNORED, "ssl.keyStore.location", "nio.numSelectorThreads"])
def test_a_key_of_the_java_server_is_ignored_with_a_reason(key: str) -> None:
    """An existing file starts a member, and its author is told what it does not do."""
    _, [notice] = load(f"{key}=1")

    assert notice.startswith(f"zoo.cfg, line 1: {key} has no effect: ")


@pytest.mark.parametrize(
    "text",
    [
        "clientPort=2181\nsecureClientPort=2281",
        "server.1=a:1:2;2181\nsecureClientPort=2281",
        "clientPort=2181\nsslQuorum=false",
    ],
)
def test_who_names_a_plain_port_gets_it_and_hears_what_is_missing(text: str) -> None:
    """Nothing is in the open that its author has not put there."""
    config, [notice] = load(text)

    assert config.client_port == 2181
    assert "has no effect: " in notice


def test_a_refusal_has_bounds() -> None:
    """Whatever an operator has pasted into the file, the sentence stays one."""
    with pytest.raises(ConfigError) as refusal:
        load(f"server.{'1' * 5000}={'x' * 5000}")

    assert len(str(refusal.value)) < 600


def test_a_later_source_means_the_same_member_by_another_spelling() -> None:
    """`server.01` is server 1."""
    config, _ = load("server.1=a:1:2;5", environment={"ZABD_SERVER_01": "b:1:2;6"})

    assert [member.host for member in config.members] == ["b"]


def test_a_java_system_property_may_stand_in_the_file() -> None:
    """Many files carry the `zookeeper.` prefix of the property."""
    config, notices = load("zookeeper.skipACL=yes")

    assert config.skip_acl
    assert notices == ()


def test_hard_quotas_can_be_switched_on() -> None:
    """Whoever asks for hard quotas must not find out on the day they are exceeded."""
    config, notices = load("enforceQuota=true")

    assert config.enforce_quota
    assert notices == ()


def test_lines_are_those_of_a_properties_file() -> None:
    """Colons and blanks separate too, lines join at a backslash, and comments begin with ! or #."""
    config, notices = load("! no\ntickTime : 7\ninitLimit 8\nsyncLimit = \\\n   9\n\n# end\\\n")

    assert (config.tick_ms, config.init_limit, config.sync_limit) == (7, 8, 9)
    assert notices == ()


def test_no_key_is_both_known_and_ignored() -> None:
    """The table would promise what the notice denies."""
    assert not {key.name for key in KEYS} & set(IGNORED)
    assert {key.field for key in KEYS} <= {
        *ServerConfig.__dataclass_fields__,
        "peer_type",
        "metrics_provider",
    }


@pytest.mark.parametrize(
    "spec",
    [
        "alpha:2888:3888:participant;0.0.0.0:2181",
        "[::1]:2888:3888:observer;[::1]:2181",
        "alpha:2888:3888:participant",
    ],
)
def test_a_member_is_written_as_it_is_read(spec: str) -> None:
    """/zookeeper/config can be pasted back into a file."""
    assert parse_member(Setting("server.7", spec, "here")).line() == f"server.7={spec}"


def test_who_enforces_authentication_says_of_what_scheme() -> None:
    """A member that would serve nobody, or everybody, does not start."""
    config, notices = load("enforce.auth.enabled=true\nenforce.auth.schemes=digest")
    assert (config.auth_enforced, config.auth_schemes, notices) == (True, ("digest",), ())

    with pytest.raises(ConfigError, match=r"enforce\.auth\.schemes"):
        load("enforce.auth.enabled=true")
    with pytest.raises(ConfigError, match="digest"):
        load("enforce.auth.schemes=ip")


def test_digest_algorithms_have_javas_names() -> None:
    """And mean hashlib's, whatever their case."""
    assert load("DigestAuthenticationProvider.digestAlg=sha3-256")[0].digest_algorithm == "sha3_256"
    with pytest.raises(ConfigError, match="SHA-256"):
        load("DigestAuthenticationProvider.digestAlg=MD5")


@pytest.mark.parametrize(("voters", "share"), [(1, 1000), (2, 1000), (3, 500), (5, 250)])
def test_outstanding_requests_are_shared_out(voters: int, share: int) -> None:
    """The leader has the requests of all followers in progress at once."""
    config, _ = load(ensemble=voters, member_id=1)
    assert config.outstanding_share == share


PROMETHEUS = "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider"
NOTHING = "org.apache.zookeeper.metrics.impl.NullMetricsProvider"


@pytest.mark.parametrize(
    ("text", "where", "notices"),
    [
        ("", ("127.0.0.1", None), 0),
        ("metricsProvider.httpPort=7070", ("127.0.0.1", 7070), 0),
        (f"metricsProvider.className={PROMETHEUS}", ("127.0.0.1", 7000), 0),
        (
            (
                f"metricsProvider.className={PROMETHEUS}\nmetricsProvider.httpHost=0.0.0.0\n"
                "metricsProvider.httpPort=0\nmetricsProvider.exportJvmInfo=true"
            ),
            ("0.0.0.0", 0),  # noqa: S104
            1,
        ),
        (
            f"metricsProvider.className={NOTHING}\nmetricsProvider.httpPort=7000",
            ("127.0.0.1", None),
            1,
        ),
    ],
)
def test_a_page_for_prometheus_is_asked_for_as_in_zookeeper(
    text: str, where: tuple[str, int | None], notices: int
) -> None:
    """By the class, by the port or by both; and on loopback, unless somebody says otherwise."""
    config, told = load(text)

    assert (config.metrics_host, config.metrics_port) == where
    assert len(told) == notices


def test_a_provider_of_somebody_elses_is_refused() -> None:
    """A member without the page that its operator counts on would be found out too late."""
    with pytest.raises(ConfigError, match=r"MyProvider.*PrometheusMetricsProvider"):
        load("metricsProvider.className=com.example.MyProvider")
