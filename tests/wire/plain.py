"""The recorded vectors, and our values in the same plain form as theirs."""

import json
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).parent / "vectors"
WORDS_FILE = "four_letter_words.jsonl"


Plain: TypeAlias = Any  # dicts, lists, numbers and texts
Vector: TypeAlias = dict[str, Any]


def load(name: str) -> list[Vector]:
    """The lines of one of the recorded files."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


VECTORS = [
    vector
    for file in sorted(FOLDER.glob("*.jsonl"))
    if file.name != WORDS_FILE
    for vector in load(file.name)
]

# Where Jute's name is not ours in camel case.
_JUTE_NAMES = {
    ("ConnectRequest", "timeout_ms"): "timeOut",
    ("ConnectRequest", "password"): "passwd",
    ("ConnectResponse", "timeout_ms"): "timeOut",
    ("ConnectResponse", "password"): "passwd",
    ("SetWatches", "data"): "dataWatches",
    ("SetWatches", "exist"): "existWatches",
    ("SetWatches", "child"): "childWatches",
    ("SetWatches2", "data"): "dataWatches",
    ("SetWatches2", "exist"): "existWatches",
    ("SetWatches2", "child"): "childWatches",
    ("SetWatches2", "persistent"): "persistentWatches",
    ("SetWatches2", "persistent_recursive"): "persistentRecursiveWatches",
    ("GetEphemerals", "prefix"): "prefixPath",
    ("EphemeralsResult", "paths"): "ephemerals",
    ("AllChildrenNumberResult", "total"): "totalNumber",
    ("WhoAmIResult", "infos"): "clientInfo",
    ("ClientInfo", "scheme"): "authScheme",
    ("ErrorResult", "code"): "err",
}


def plain(value: object) -> Plain:
    """The value as the `decoded` of a vector has it."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if hasattr(value, "_fields"):
        kind = type(value).__name__
        return {
            _JUTE_NAMES.get((kind, field)) or _camel(field): plain(part)
            for field, part in zip(value._fields, value, strict=True)
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
