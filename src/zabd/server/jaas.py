"""The users of SASL DIGEST-MD5, read from the file that ZooKeeper's server reads: JAAS.

    Server {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        user_super="..."
        user_alice="...";
    };

Of its sections `Server` counts, of its modules this one; what else a Java process may find in such
a file is none of ours.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from zabd.wire.digest_md5 import Users

SECTION = "Server"
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
USER = "user_"

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/                # nothing
    | "(?P<quoted>(?:[^"\\]|\\.)*)"
    | (?P<word>[^\s"{};=]+)
    | (?P<mark>[{};=])""",
    re.VERBOSE | re.DOTALL,
)


def read_users(path: str) -> Users | None:
    """The users that a file names; None if it has no section `Server`.

    Raises:
        ValueError: it cannot be read, or is none of JAAS.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return parse_users(text)


def parse_users(text: str) -> Users | None:
    """The users that a text names; None if it has no section `Server`.

    Raises:
        ValueError: it is none of JAAS.
    """
    tokens = _tokens(text)
    found: Users | None = None
    for name in tokens:
        _expect(tokens, "{")
        users = Users(dict(_users_of_section(tokens)))
        _expect(tokens, ";")
        if name == SECTION:
            found = users
    return found


def _users_of_section(tokens: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Each module is a class, a flag, options and a semicolon."""
    while (module := _next(tokens)) != "}":
        _next(tokens)
        while (option := _next(tokens)) != ";":
            _expect(tokens, "=")
            value = _next(tokens)
            if module == MODULE and option.startswith(USER):
                yield option.removeprefix(USER), value


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1}: a quote without its end")
        at = match.end()
        if match["quoted"] is not None:
            yield re.sub(r"\\(.)", r"\1", match["quoted"])
        elif token := match["word"] or match["mark"]:
            yield token


def _next(tokens: Iterator[str]) -> str:
    token = next(tokens, None)
    if token is None:
        raise ValueError("it ends in the middle of a section")
    return token


def _expect(tokens: Iterator[str], mark: str) -> None:
    # What came instead may be a password.
    if _next(tokens) != mark:
        raise ValueError(f"expected {mark!r} between the name and what follows it")
