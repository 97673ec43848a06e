"""The reference of the configuration says what the table of keys says, no more and no less."""

from pathlib import Path

from zabd.cli import daemon
from zabd.server.config import ServerConfig
from zabd.server.keys import KEYS, Key

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"

# Defaults that follow from other values, or from where the configuration comes from.
DERIVED = {
    "client_port": "2181 and up",
    "client_host": "loopback; with a file, every address",
    "data_dir": "`./zabd-data/<id>`",
    "log_dir": "as `dataDir`",
    "session_timeout_ms_min": "2 ticks",
    "session_timeout_ms_max": "20 ticks",
    "words": "every word that changes nothing",
    "peer_type": "as `server.N` says",
    "super_digest": "nobody",
    "digest_algorithm": "SHA1",
    "auth_schemes": "none",
    "connections_max": "what descriptors allow",
    "metrics_provider": "none",
    "metrics_port": "no page",
}


def default_of(key: Key) -> str:
    """What holds when nothing is said."""
    if key.field in DERIVED:
        return DERIVED[key.field]
    value = ServerConfig.__dataclass_fields__[key.field].default
    return str(value).lower()


def row_of(key: Key) -> str:
    """The key's line in the table."""
    return f"| `{key.name}` | {key.help} | {key.allowed} | {default_of(key)} |"


def test_the_table_has_every_key() -> None:
    """A row for each key, as the code has it; and no row for a key that is gone."""
    rows = [line for line in REFERENCE.read_text("utf-8").splitlines() if line.startswith("| `")]

    assert [row for row in rows if row.count("|") == 5] == [row_of(key) for key in KEYS]


def test_every_exit_code_is_there() -> None:
    """A supervisor decides by them whether to start a member again."""
    text = REFERENCE.read_text("utf-8")

    codes = [value for name, value in vars(daemon).items() if name.startswith("EXIT_")]
    assert all(f"| {code} |" in text for code in [0, *codes])
