"""Ports for members: nobody is given one that somebody else was given."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from zabd.cli.members import Ensemble
from zabd.cli.ports import LOOPBACK, PORT_MAX, PORT_MIN, PortError, PortLeases, free_ports


def test_free_ports_are_different_and_out_of_the_way() -> None:
    """None of the range that outgoing connections are given, so a dead member's stays free."""
    ports = free_ports(9)

    assert len(set(ports)) == 9
    assert all(PORT_MIN <= port < PORT_MAX for port in ports)


def test_a_leased_port_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by another owner, though no process listens on it; after it came back it is."""
    few = range(PORT_MIN, PORT_MIN + 40)
    monkeypatch.setattr("zabd.cli.ports.PORT_MAX", few.stop)
    with contextlib.closing(PortLeases()) as mine, contextlib.closing(PortLeases()) as others:
        held = {mine.take(1)[0] for _ in range(10)}
        given = {others.take(1)[0] for _ in range(10)}
        assert not held & given

        mine.give_back(held)
        others.close()
        assert {mine.take(1)[0] for _ in range(10)} <= set(few)


def test_another_process_sees_the_lease() -> None:
    """Two test runs know nothing of each other but what the system tells them."""
    with contextlib.closing(PortLeases()) as leases:
        (port,) = leases.take(1)
        program = f"import socket; socket.socket(2, socket.SOCK_DGRAM).bind(({LOOPBACK!r}, {port}))"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert other.returncode != 0
    assert b"Address already in use" in other.stderr


def test_ports_that_cannot_be_had_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that were found on the way are given back."""
    monkeypatch.setattr("zabd.cli.ports.PORT_MAX", PORT_MIN + 20)
    with contextlib.closing(PortLeases()) as leases, contextlib.ExitStack() as held:
        for port in range(PORT_MIN, PORT_MIN + 20):
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind((LOOPBACK, port))
        with pytest.raises(PortError, match="there are no 1 free ports from 20000 to 20020"):
            leases.take(1)


def test_an_ensemble_leases_its_ports_until_it_is_closed(tmp_path: Path) -> None:
    """Also while none of its members runs."""
    with Ensemble(tmp_path, voters=1) as ensemble:
        port = ensemble.members[0].client_port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            with pytest.raises(OSError, match="in use"):
                other.bind((LOOPBACK, port))
            ensemble.close()
            other.bind((LOOPBACK, port))
