"""What a line says: bytes to text to words, as a shell quotes them.

L1  A line of any length and content becomes words or one `LineError`; no more of it is held
    than a server would take.
"""

import re

from zabd.model.errors import LocalProtocolError

# No server takes a request above 1 MiB (jute.maxbuffer), so no longer line can be of use.
LINE_BYTES_MAX = 1024 * 1024
# A tab separates words; every other control character is a slip or an attack on a terminal.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SHOWN_MAX = 500
# A quote or a backslash that none of the others takes is one without its other half.
_PIECE = re.compile(
    r"""(?P<blank>[ \t]+)|(?P<plain>[^ \t'"\\]+)|(?P<single>'[^']*')"""
    r"""|(?P<double>"[^"\\]*+(?:\\.[^"\\]*+)*+")|(?P<escaped>\\.)|(?P<alone>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"""\\(["\\])""")


class LineError(LocalProtocolError):
    """A line that says nothing that could be done; nothing was sent."""


class LineSplitter:
    """Cuts a stream into lines; one that is too long is dropped up to its end, and told once."""

    def __init__(self) -> None:
        self._part = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that end in `data`, without their end; None for one that was too long."""
        lines: list[bytes | None] = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._take(piece)
            lines.append(self._end())
        self._take(rest)
        return lines

    def rest(self) -> list[bytes | None]:
        """The last line, if the stream ended without ending it."""
        return [self._end()] if self._part or self._too_long else []

    def _take(self, piece: bytes) -> None:
        if len(self._part) + len(piece) > LINE_BYTES_MAX:
            self._too_long = True
            self._part.clear()
        if not self._too_long:
            self._part += piece

    def _end(self) -> bytes | None:
        line = None if self._too_long else bytes(self._part).removesuffix(b"\r")
        self._part.clear()
        self._too_long = False
        return line


def decoded(line: bytes | None) -> str:
    """The text of a line that `LineSplitter` cut."""
    if line is None:
        raise LineError(f"the line is longer than {LINE_BYTES_MAX} bytes, which no server takes")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LineError(f"the line is not UTF-8: byte {error.start + 1} of it") from error


def split(line: str) -> list[str]:
    """The words of a line, quoted as in a shell; none for an empty line or a comment."""
    if bad := _CONTROL.search(line):
        raise LineError(f"the line has the control character U+{ord(bad[0]):04X}")
    if line.lstrip().startswith("#"):
        return []
    words = _words(line)
    check_words(words)
    return words


def _words(line: str) -> list[str]:
    """As `shlex.split` does it, which takes minutes for a word of a mebibyte."""
    words: list[str] = []
    word: list[str] | None = None
    for piece in _PIECE.finditer(line):
        kind, text = piece.lastgroup, piece[0]
        if kind == "blank":
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        match kind:
            case "plain":
                word.append(text)
            case "single":
                word.append(text[1:-1])
            case "double":
                word.append(_ESCAPED.sub(r"\1", text[1:-1]))
            case "escaped":
                word.append(text[1])
            case _:
                what = "a backslash has nothing behind it" if text == "\\" else f"no closing {text}"
                raise LineError(f"the line cannot be read: {what}")
    return words if word is None else [*words, "".join(word)]


def check_words(words: list[str]) -> None:
    """Refuse words that could not be sent: too long, or of bytes that are no UTF-8."""
    try:
        size = sum(len(word.encode("utf-8")) for word in words)
    except UnicodeEncodeError as error:
        raise LineError("the command is not UTF-8") from error
    if size > LINE_BYTES_MAX:
        raise LineError(f"the command has {size} bytes; no server takes over {LINE_BYTES_MAX}")


def one_line(text: str) -> str:
    """Any text as one line of bounded length that no terminal takes for orders."""
    shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
    return visible(shown).replace("\n", "\\x0a").replace("\t", " ")


def visible(text: str) -> str:
    """Text with its control characters, but for newline and tab, written out."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda bad: f"\\x{ord(bad[0]):02x}", text)
