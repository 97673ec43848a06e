"""Files that a command line names, read whole."""

import sys
from pathlib import Path
from typing import BinaryIO

import click

FILE_BYTES_MAX = 64 * 1024 * 1024
"""No member takes a longer request, whatever its jute.maxbuffer says."""


def read_file(name: str, option: str) -> bytes:
    """The content of the file, or of standard input if it is ``-``.

    Raises `click.BadParameter` about `option` if it cannot be read or is longer than
    `FILE_BYTES_MAX`, as a device without an end is.
    """
    try:
        if name == "-":
            content = _bounded(sys.stdin.buffer)
        else:
            with Path(name).open("rb") as file:
                content = _bounded(file)
    except OSError as error:
        raise click.BadParameter(f"{name}: {error.strerror}", param_hint=option) from error
    if len(content) > FILE_BYTES_MAX:
        told = f"{name}: more than {FILE_BYTES_MAX} bytes, which no member takes"
        raise click.BadParameter(told, param_hint=option)
    return content


def _bounded(file: BinaryIO) -> bytes:
    return file.read(FILE_BYTES_MAX + 1)
