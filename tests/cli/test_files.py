"""Files that a command line names."""

from pathlib import Path

import pytest
from click import BadParameter

from zabd.cli.files import FILE_BYTES_MAX, read_file


def test_a_device_without_an_end_is_refused() -> None:
    """The command used to read on until the machine had no memory left."""
    with pytest.raises(BadParameter, match=f"more than {FILE_BYTES_MAX} bytes"):
        read_file("/dev/zero", "--data")


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """Byte for byte."""
    (tmp_path / "file").write_bytes(b"a\r\n\0")
    assert read_file(str(tmp_path / "file"), "--data") == b"a\r\n\0"


def test_what_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    """With the reason of the system."""
    with pytest.raises(BadParameter, match="Is a directory"):
        read_file(str(tmp_path), "--payload")
