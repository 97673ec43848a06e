"""The keys of zoo.cfg: their names, what they may hold, and which of ZooKeeper's mean nothing here.

One table serves the file, the environment, the command line and the documentation. Sources:
Client protocol, sections 2, 9, 11, 15-17, 19 and 21, and the administrator's guide of ZooKeeper.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from zabd.replica.config import JUTE_MAXBUFFER_MAX
from zabd.server.jaas import read_users

INT_MAX = 2**31 - 1
PORT_MAX = 65_535
# The four-letter words that change nothing; they are allowed unless the whitelist says less.
READ_ONLY_WORDS: tuple[str, ...] = (
    "conf",
    "cons",
    "dirs",
    "dump",
    "envi",
    "gtmk",
    "hash",
    "isro",
    "mntr",
    "ruok",
)
READ_ONLY_WORDS += ("srvr", "stat", "wchc", "wchp", "wchs")


@dataclass(frozen=True, slots=True)
class Key:
    """One key that is understood: where its value goes and what it may be."""

    name: str  # as ZooKeeper spells it
    field: str  # of ServerConfig
    parse: Callable[[str], object]  # raises ValueError for what is not allowed
    allowed: str  # completes the sentence "... is not ..."
    help: str

    @property
    def environment(self) -> str:
        """The name of the environment variable that sets this key."""
        return environment_name(self.name)


def environment_name(key: str) -> str:
    """`ZABD_<KEY>`: upper case, dots as underscores."""
    return "ZABD_" + key.replace(".", "_").upper()


def _integer(low: int, high: int = INT_MAX) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,12}", text):
            raise ValueError(text)
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(text)
    return text


def _host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not is_host(bare):
        raise ValueError(text)
    return bare


def is_host(text: str) -> bool:
    """A host name or an address as they may appear in a configuration; nothing is resolved."""
    return re.fullmatch(r"[A-Za-z0-9._:%*-]{1,255}", text) is not None


def _words(text: str) -> tuple[str, ...] | None:
    """None allows every word."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if "*" in words:
        return None
    if not all(re.fullmatch(r"[a-z]{4}", word) for word in words):
        raise ValueError(text)
    return words


# Java's names and hashlib's.
DIGEST_ALGORITHMS: dict[str, str] = {
    "SHA1": "sha1",
    "SHA-224": "sha224",
    "SHA-256": "sha256",
    "SHA-384": "sha384",
    "SHA-512": "sha512",
    "SHA3-224": "sha3_224",
    "SHA3-256": "sha3_256",
    "SHA3-384": "sha3_384",
    "SHA3-512": "sha3_512",
}


def _digest_algorithm(text: str) -> str:
    try:
        return DIGEST_ALGORITHMS["SHA1" if text.upper() == "SHA-1" else text.upper()]
    except KeyError:
        raise ValueError(text) from None


def _auth_schemes(text: str) -> tuple[str, ...]:
    """An address is no proof of anybody, and other schemes are not offered yet."""
    schemes = tuple(dict.fromkeys(scheme.strip() for scheme in text.split(",")))
    if not set(schemes) <= {"digest", "sasl"}:
        raise ValueError(text)
    return schemes


def _peer_type(text: str) -> str:
    if text.lower() not in {"participant", "observer"}:
        raise ValueError(text)
    return text.lower()


_PROVIDERS = "org.apache.zookeeper.metrics."
# The classes that come with ZooKeeper, and whether they give a page to anybody.
METRICS_PROVIDERS: dict[str, bool] = {
    f"{_PROVIDERS}prometheus.PrometheusMetricsProvider": True,
    f"{_PROVIDERS}impl.DefaultMetricsProvider": False,
    f"{_PROVIDERS}impl.NullMetricsProvider": False,
}


def _provider(text: str) -> bool:
    """Whether the provider of this class shows a page."""
    try:
        return METRICS_PROVIDERS[text]
    except KeyError:
        raise ValueError(text) from None


def _count(name: str, field: str, low: int, text: str, high: int = INT_MAX) -> Key:
    limits = f"from {low} to {high}" if high < INT_MAX else f"of at least {low}"
    return Key(name, field, _integer(low, high), f"a whole number {limits}", text)


def _switch(name: str, field: str, text: str) -> Key:
    return Key(name, field, _boolean, "true or false", text)


KEYS: tuple[Key, ...] = (
    _count("clientPort", "client_port", 1, "the port for clients", PORT_MAX),
    Key("clientPortAddress", "client_host", _host, "a host or address", "where clients connect"),
    _count("clientPortListenBacklog", "backlog", -1, "accept queue; -1 is the default of 1024"),
    Key("dataDir", "data_dir", _text, "a directory", "snapshots, epochs and identity"),
    Key("dataLogDir", "log_dir", _text, "a directory", "the log, on a device of its own"),
    _count("tickTime", "tick_ms", 1, "the unit of time, in ms", 3_600_000),
    _count("initLimit", "init_limit", 1, "ticks a learner has to synchronise", 1_000_000),
    _count("syncLimit", "sync_limit", 1, "ticks a peer may be silent", 1_000_000),
    _count("minSessionTimeout", "session_timeout_ms_min", -1, "in ms; -1 is 2 ticks"),
    _count("maxSessionTimeout", "session_timeout_ms_max", -1, "in ms; -1 is 20 ticks"),
    _count("maxClientCnxns", "connections_per_address_max", 0, "connections of an address; 0: any"),
    _count("maxCnxns", "connections_max", 0, "connections in all; 0: any number"),
    Key("4lw.commands.whitelist", "words", _words, "* or words like stat,srvr", "words allowed"),
    _count(
        "jute.maxbuffer",
        "request_bytes_max",
        1024,
        "the largest request, in bytes",
        JUTE_MAXBUFFER_MAX,
    ),
    _count("snapCount", "snapshot_txns", 2, "txns between two snapshots"),
    _count("autopurge.snapRetainCount", "snapshots_kept", 3, "snapshots kept", 1_000),
    _switch("standaloneEnabled", "standalone_enabled", "whether a member may be alone"),
    _count("globalOutstandingLimit", "outstanding_max", 1, "requests in progress", 1_000_000),
    _count(
        "largeRequestThreshold", "large_request_threshold", -1, "bytes of a large one; -1: none"
    ),
    _count("largeRequestMaxBytes", "large_request_bytes_max", 1, "large requests in progress"),
    _count("throttledOpWaitTime", "throttled_op_wait_ms", 0, "ms before -127; 0: no such limit"),
    _count("connectionMaxTokens", "connection_tokens_max", 0, "new sessions at once; 0: any"),
    _count("connectionTokenFillTime", "connection_token_fill_ms", 1, "ms between two fills"),
    _count("connectionTokenFillCount", "connection_token_fill_count", 1, "tokens of a fill"),
    Key("peerType", "peer_type", _peer_type, "participant or observer", "the role of this member"),
    _switch("quorumListenOnAllIPs", "quorum_on_all_addresses", "peer ports on every address"),
    _switch("readonlymode.enabled", "read_only_enabled", "serve reads without a quorum"),
    _switch("localSessionsEnabled", "local_sessions", "sessions that cost no txn"),
    _switch(
        "localSessionsUpgradingEnabled", "local_sessions_upgrade", "make them global if needed"
    ),
    _switch("extendedTypesEnabled", "extended_types", "TTL nodes (on by default)"),
    _switch("enforceQuota", "enforce_quota", "refuse what exceeds a hard quota"),
    _switch("skipACL", "skip_acl", "check no ACL at all"),
    Key(
        "DigestAuthenticationProvider.superDigest",
        "super_digest",
        _text,
        "user:base64(sha1(user:password))",
        "who may do everything",
    ),
    Key(
        "DigestAuthenticationProvider.digestAlg",
        "digest_algorithm",
        _digest_algorithm,
        "one of " + ", ".join(DIGEST_ALGORITHMS),
        "how passwords are hashed, alike on all members",
    ),
    Key(
        "java.security.auth.login.config",
        "sasl_users",
        read_users,
        "a JAAS file, such as Server { org.apache.zookeeper.server.auth.DigestLoginModule required"
        ' user_NAME="password"; };',
        "the file with the users of SASL DIGEST-MD5; without a section `Server` there is no SASL",
    ),
    _switch("sessionRequireClientSASLAuth", "sasl_required", "serve only users of SASL"),
    _switch("enforce.auth.enabled", "auth_enforced", "serve only who has shown an identity"),
    Key(
        "enforce.auth.schemes",
        "auth_schemes",
        _auth_schemes,
        "digest, sasl or both, with a comma",
        "the schemes of which one is asked for",
    ),
    _count("znode.container.checkIntervalMs", "container_check_ms", 100, "between two checks"),
    _count("znode.container.maxPerMinute", "containers_per_minute_max", 1, "removed a minute"),
    _count("znode.container.maxNeverUsedIntervalMs", "container_unused_ms_max", 0, "0 is never"),
    Key(
        "metricsProvider.className",
        "metrics_provider",
        _provider,
        "PrometheusMetricsProvider of ZooKeeper, for a page, or one of its two others, for none",
        "that of the Prometheus provider switches the page on",
    ),
    Key(
        "metricsProvider.httpHost",
        "metrics_host",
        _host,
        "a host or address",
        "where Prometheus connects",
    ),
    _count(
        "metricsProvider.httpPort",
        "metrics_port",
        0,
        "the port of the page for Prometheus; 0 is any that is free",
        PORT_MAX,
    ),
    _count(
        "metricsProvider.prefixComponents",
        "metrics_prefix_components",
        1,
        "how much of a path is a label of watch events",
        16,
    ),
    _count(
        "metricsProvider.ephemeralKeys",
        "metrics_keys_max",
        0,
        "keys that have a gauge of their ephemerals",
        10_000,
    ),
)

BY_NAME: dict[str, Key] = {key.name: key for key in KEYS}

_JAVA = "it tunes the Java server's threads"
_LATER = "not offered yet"
_ALWAYS = "always on here"
_TLS = "TLS is not offered yet"

# Keys of ZooKeeper that change nothing here, each with the reason a notice gives.
IGNORED: dict[str, str] = {
    "admin.enableServer": _LATER,
    "admin.serverPort": _LATER,
    "admin.serverAddress": _LATER,
    "admin.commandURL": _LATER,
    "audit.enable": _LATER,
    "autopurge.purgeInterval": "retention is always on here",
    "cnxTimeout": "connecting to a peer is bounded by the tick",
    "connectToLearnerMasterLimit": "initLimit bounds it",
    "digest.enabled": _ALWAYS,
    "electionAlg": "there is one election algorithm",
    "electionPortBindRetry": "a busy port is an error at once",
    "fastleader.maxNotificationInterval": "the tick decides it",
    "fastleader.minNotificationInterval": "the tick decides it",
    "flushDelay": "a batch is as large as what came during one sync",
    "forceSync": "nothing is acknowledged before its fsync, ever",
    "fsync.warningthresholdms": "a slow fsync is always logged",
    "leaderServes": "the leader always serves",
    "learner.asyncSending": _ALWAYS,
    "maxBatchSize": "a batch is as large as what came during one sync",
    "multiAddress.enabled": "a member has one address",
    "observer.syncEnabled": _ALWAYS,
    "observerMasterPort": "observers follow the leader",
    "preAllocSize": "the log chooses its segment size",
    "reconfigEnabled": _LATER,
    "requestThrottleLimit": "outstanding requests are bounded by globalOutstandingLimit",
    "secureClientPortAddress": _TLS,
    "serverCnxnFactory": _JAVA,
    "snapshot.compression.method": _LATER,
    "snapshot.trust.empty": "an empty directory beside members with data is never trusted",
    "snapSizeLimitInKb": "snapCount decides",
    "sslQuorumReloadCertFiles": _TLS,
    "syncEnabled": _ALWAYS,
    "tcpKeepAlive": _ALWAYS,
}
# Whole families of them, by what their names begin with.
IGNORED_FAMILIES: tuple[tuple[str, str], ...] = (
    ("authProvider", "digest and ip are always there, sasl where a JAAS file names users"),
    ("commitProcessor.", _JAVA),
    ("connection", "connections are bounded by maxClientCnxns and maxCnxns"),
    ("jute.", "jute.maxbuffer alone is understood"),
    ("kerberos.", _LATER),
    ("metricsProvider.https", _TLS),
    ("metricsProvider.ssl.", _TLS),
    ("metricsProvider.", "the page is made on the member's own loop, and there is no JVM"),
    ("netty.", _JAVA),
    ("nio.", _JAVA),
    ("quorum.auth.", _LATER),
    ("quorum.cnxn.", _JAVA),
    ("ssl.", _TLS),
    ("X509AuthenticationProvider.", _TLS),
    ("zookeeper.", _JAVA),
)
# Those who ask for these rely on them: a member must not start in the open instead.
PROTECTION: dict[str, str] = {
    "sslQuorum": "members talk to each other without TLS here",
    "quorum.auth.enableSasl": "members do not prove to each other who they are here",
    "quorum.auth.learnerRequireSasl": "members do not prove to each other who they are here",
    "quorum.auth.serverRequireSasl": "members do not prove to each other who they are here",
}
SECURE_PORT = "secureClientPort"  # and no other port for clients

# To ignore one of these would start a member that counts votes otherwise than its peers.
REFUSED: tuple[tuple[str, str], ...] = (
    ("dynamicConfigFile", "list the members as server.N lines in this file"),
    ("group.", "every voter counts the same: remove group.N and weight.N"),
    ("weight.", "every voter counts the same: remove group.N and weight.N"),
)


def reason_to_ignore(name: str) -> str | None:
    """Why a key of ZooKeeper's means nothing here; None for a key nobody knows."""
    if name == SECURE_PORT:
        return _TLS
    if (reason := IGNORED.get(name) or PROTECTION.get(name)) is not None:
        return reason
    return next((why for start, why in IGNORED_FAMILIES if name.startswith(start)), None)


def reason_to_refuse(name: str, value: str) -> str | None:
    """Why a file with this key is not accepted."""
    if name in PROTECTION and value.lower() not in {"false", "no"}:
        return PROTECTION[name]
    return next((why for start, why in REFUSED if name.startswith(start)), None)
