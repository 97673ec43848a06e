"""`zabctl bench`: how fast an ensemble is, and what it costs."""

import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from zabd.cli.output import ExitStatus, print_table, say

OPS = ("get", "set", "create", "mixed:0.9")
CELLS = ("1x1", "8x16", "64x1", "64x128")
HEADER = (
    "OP",
    "CELL",
    "OPS/S",
    "SPREAD",
    "CPU US/OP",
    "P50 MS",
    "P99 MS",
    "P99.9 MS",
    "ERRORS",
    "MIB",
)

PLOTS = (
    ("ops_per_s", "Operations per second", "op/s"),
    ("cpu_us_per_op", "CPU of all members for an operation", "us"),
    ("p99_ms", "99 of 100 are answered within", "ms"),
)


@click.command()
@click.argument("hosts", required=False)
@click.option("--op", "ops", multiple=True, default=OPS, show_default=True, help="What to ask for.")
@click.option(
    "--cell",
    "cells",
    multiple=True,
    default=CELLS,
    show_default=True,
    help="Connections x requests that each of them has outstanding.",
)
@click.option("--size", "size_bytes", default=1024, show_default=True, help="Bytes of data.")
@click.option("--seconds", default=5.0, show_default=True, help="How long one run takes.")
@click.option("--warmup", default=1.0, show_default=True, help="Seconds before the first run.")
@click.option("--runs", default=3, show_default=True, help="Runs of each cell; medians are shown.")
@click.option("--pids", default="", help="The servers' process ids, for their CPU and memory.")
@click.option("--members", default=3, show_default=True, help="Members to start, without HOSTS.")
@click.option(
    "--setting", "settings", multiple=True, help="KEY=VALUE for members that are started."
)
@click.option(
    "--out", type=click.Path(file_okay=False), help="Write JSON, a table and plots to this folder."
)
@click.option(
    "--paper",
    is_flag=True,
    help="Instead: shares of reads over 3 to 13 members, failures over time, bursts, beside the "
    "paper of 2010.",
)
@click.option("--quick", is_flag=True, help="One run of half a second: does it work at all?")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
def bench(
    hosts: str | None,
    ops: Sequence[str],
    cells: Sequence[str],
    size_bytes: int,
    seconds: float,
    warmup: float,
    runs: int,
    pids: str,
    members: int,
    settings: Sequence[str],
    out: str | None,
    *,
    paper: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Measure the ensemble at HOSTS, or one of its own on this machine.

    Any server of the ZooKeeper protocol will do. CPU is what the servers use for one operation,
    summed over all of them: it needs their --pids, and is the steadier figure on a busy machine.

    \b
    Exit status:
      0   measured
      1   measured, but there were error replies
      69  a server does not answer, or not as it should
    """  # noqa: D301  (click wants the character itself)
    from zabd.cli.figures import machine
    from zabd.cli.load import LoadError

    rows = []
    before = machine()
    if quick:
        seconds, warmup, runs = 0.5, 0.1, 1
    if paper:
        _paper(hosts, seconds, out, as_json=as_json)
    try:
        with ExitStack() as stack:
            if hosts is None:
                hosts, pids = _started(stack, members, settings)
            known = tuple(int(pid) for pid in pids.split(",") if pid)
            shape = (size_bytes, seconds, warmup, runs)
            for op in ops:
                for cell in cells:
                    say(f"{op} {cell}")
                    rows.append(_measure(hosts, op, cell, shape, known))
    except (LoadError, OSError) as error:
        say(str(error))
        raise SystemExit(ExitStatus.NO_ENSEMBLE) from None
    if out is not None:
        _write(Path(out), rows, before)
    if as_json:
        click.echo(json.dumps(rows))
    else:
        print_table(HEADER, map(_cells, rows))
    raise SystemExit(ExitStatus.REFUSED if any(row["errors"] for row in rows) else ExitStatus.OK)


def _paper(hosts: str | None, seconds: float, out: str | None, *, as_json: bool) -> None:
    from zabd.cli.load import LoadError
    from zabd.cli.paper import run

    if hosts is not None:
        raise click.UsageError("--paper starts members of its own: leave HOSTS out")
    try:
        run(seconds, None if out is None else Path(out), as_json=as_json)
    except (LoadError, OSError) as error:
        say(str(error))
        raise SystemExit(ExitStatus.NO_ENSEMBLE) from None
    raise SystemExit(ExitStatus.OK)


def _write(folder: Path, rows: Sequence[dict[str, object]], known: dict[str, object]) -> None:
    from zabd.cli.figures import machine_line, markdown_table, write_json, write_section
    from zabd.cli.plot import bars

    write_json(folder, "bench", {"machine": known, "rows": rows})
    table = markdown_table(HEADER, map(_cells, rows))
    write_section(folder, "bench", f"{table}\n\n{machine_line(known)}")
    for field, title, unit in PLOTS:
        groups = {f"{r['op']} {r['cell']}": {"": _figure(r[field])} for r in rows}
        (folder / f"bench-{field}.svg").write_text(bars(title, unit, groups), encoding="utf-8")


def _figure(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _started(stack: ExitStack, members: int, settings: Sequence[str]) -> tuple[str, str]:
    from zabd.cli.members import Ensemble

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="zabd-bench-"))
    pairs = dict(setting.split("=", 1) for setting in settings)
    ensemble = stack.enter_context(Ensemble(Path(folder), voters=members, settings=pairs))
    ensemble.start()
    return ensemble.hosts, ",".join(str(member.pid) for member in ensemble.members)


def _measure(
    hosts: str,
    op: str,
    cell: str,
    shape: tuple[int, float, float, int],
    pids: Sequence[int],
) -> dict[str, object]:
    from zabd.cli.load import Load, remove

    size_bytes, seconds, warmup, runs = shape
    connections, _, window = cell.partition("x")
    addresses = list(_addresses(hosts))
    root = f"/zabd-bench-{os.getpid()}"
    load = Load(
        addresses,
        op,
        connections=int(connections),
        window=int(window),
        size_bytes=size_bytes,
        root=root,
    )
    load.measure(warmup)
    measured = [load.measure(seconds, pids) for _ in range(runs)]
    load.close()
    remove(addresses[0], root)
    return {"op": op, "cell": cell, "size_bytes": size_bytes, **_medians(measured)}


def _addresses(hosts: str) -> Iterator[tuple[str, int]]:
    from zabd.client.hosts import parse_connect_string

    for host in parse_connect_string(hosts).hosts:
        yield host.name, host.port


def _medians(measured: Sequence[object]) -> dict[str, object]:
    runs = [dataclasses.asdict(run) for run in measured]  # type: ignore[call-overload]
    medians: dict[str, object] = {
        name: None if runs[0][name] is None else round(statistics.median(r[name] for r in runs), 3)
        for name in runs[0]
    }
    rates = [run["ops_per_s"] for run in runs]
    medians["spread"] = round((max(rates) - min(rates)) / statistics.median(rates), 3)
    medians["errors"] = sum(run["errors"] for run in runs)
    medians["runs"] = runs
    return medians


def _cells(row: dict[str, object]) -> tuple[object, ...]:
    def shown(name: str, digits: int) -> str | None:
        value = row[name]
        return None if value is None else f"{value:,.{digits}f}"

    spread = row["spread"]
    assert isinstance(spread, float)
    return (
        row["op"],
        row["cell"],
        shown("ops_per_s", 0),
        f"{spread:.0%}",
        shown("cpu_us_per_op", 1),
        shown("p50_ms", 2),
        shown("p99_ms", 2),
        shown("p999_ms", 2),
        row["errors"],
        shown("memory_mib", 0),
    )
