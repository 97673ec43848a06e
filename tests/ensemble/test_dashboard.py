"""What the shipped dashboard and alerts speak of is what members and clients really show."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.ensemble.test_alerts import hosts_of, pass_on, run
from tests.monitoring.promql import Parser, evaluate, names_in
from tests.monitoring.tower import MONITORING, Tower, metrics_port, rules
from tests.scrape import fetch

from zabd.client import connect
from zabd.client.metrics import MemoryMetrics, exposition
from zabd.testing import ZabEnsemble

DASHBOARD = MONITORING / "dashboard.json"
RARE = {"dedup_lost_replies_total"}
"""What an ensemble at work has no samples of."""

pytestmark = [pytest.mark.ensemble, pytest.mark.zab(**{"metricsProvider.httpPort": 0})]


def panels() -> list[dict[str, Any]]:
    """The panels that draw something."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    """Everything that the panels ask for, over a window that Grafana would choose."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m")


def declared(*pages: str) -> set[str]:
    """The names of what may be asked for, by the pages' own types."""
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", "\n".join(pages), re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + part for part in parts}
    return names


def test_every_panel_shows_something_at_an_ensemble_at_work(zab_ensemble: ZabEnsemble) -> None:
    """A name that nobody shows, or a label that is not there, would be an empty panel for ever."""

    async def claim() -> None:
        metrics = MemoryMetrics()
        tower = Tower(zab_ensemble, metrics)
        hosts = hosts_of(zab_ensemble)
        async with connect(hosts, metrics=metrics) as zk:
            await zk.create("/app/here", ephemeral=True, make_parents=True)
            await pass_on(hosts, clients=3, rounds=1, metrics=metrics)
            now_s = await look_twice(tower, hosts, metrics)
        for expression in expressions():
            node = Parser(expression).parse()
            if not names_in(node) & RARE:
                assert evaluate(tower.store, node, now_s), f"{expression} shows nothing"

        leader = zab_ensemble.wait_for_leader()
        page = await asyncio.to_thread(fetch, metrics_port(zab_ensemble, leader))
        known = declared(page, exposition(metrics))
        asked = [*expressions(), *(rule["expr"] for rule in rules())]
        assert set().union(*(names_in(Parser(text).parse()) for text in asked)) <= known

    run(claim)


async def look_twice(tower: Tower, hosts: str, metrics: MemoryMetrics) -> float:
    """Two scrapes with work in between; the time of the second."""
    await tower.look()
    await pass_on(hosts, clients=3, rounds=2, metrics=metrics)
    await asyncio.sleep(0.6)  # half a tick: what members count is sorted then at the latest
    await tower.look()
    return tower.looked_s


def test_panels_have_titles_and_places_of_their_own() -> None:
    """Grafana draws them where they say; two in one place hide each other."""
    places = [tuple(panel["gridPos"][key] for key in ("x", "y", "w", "h")) for panel in panels()]

    assert len({panel["title"] for panel in panels()}) == len(panels())
    for number, (x, y, width, height) in enumerate(places):
        assert x + width <= 24
        for left, top, w, h in places[:number]:
            assert x >= left + w or left >= x + width or y >= top + h or top >= y + height
