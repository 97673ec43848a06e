"""Somebody who watches: scrapes members and programs, and evaluates the shipped alerts."""

import asyncio
import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml
from tests.monitoring.promql import STALE, Alert, Labels, Point, Store
from tests.scrape import fetch

from zabd.client.metrics import MemoryMetrics, exposition
from zabd.testing import ZabEnsemble

MONITORING: Final = Path(__file__).parents[2] / "docs" / "monitoring"
ALERTS: Final = MONITORING / "alerts.yml"
PROMTOOL: Final = shutil.which("promtool")
EVERY_S: Final = 0.5
PATIENCE_S: Final = 40.0

Page: TypeAlias = Callable[[], Awaitable[str]]


def rules() -> list[dict[str, Any]]:
    """The rules, as they are shipped."""
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics_port(ensemble: ZabEnsemble, member_id: int) -> int:
    """Where a member's page is, by its log: port 0 in its configuration is any that is free."""
    text = ensemble.member(member_id).log.read_text("utf-8")
    return int(re.findall(r"metrics_port=(\d+)", text)[-1])


class Tower:
    """Scrapes on and on; `firing` is by the last look."""

    def __init__(self, ensemble: ZabEnsemble, *programs: MemoryMetrics) -> None:
        self.firing: dict[str, list[Labels]] = {}
        self.store = Store()
        self._alerts = [Alert.of(rule) for rule in rules()]
        self._pages: list[tuple[str, str, Page]] = []
        for member_id in ensemble.members:
            port = metrics_port(ensemble, member_id)
            self._pages.append(("zabd", str(member_id), lambda port=port: self._fetch(port)))
        for number, metrics in enumerate(programs):
            self._pages.append(("app", str(number), lambda metrics=metrics: self._show(metrics)))
        self._looks_s: list[float] = []

    async def look(self) -> Collection[str]:
        """Scrape everything once, evaluate; the names of what fires."""
        now_s = time.monotonic()
        for job, instance, page in self._pages:
            try:
                text: str | None = await page()
            except OSError:
                text = None
            self.store.scrape(now_s, job, instance, text)
        self._looks_s.append(now_s)
        looked = {alert.name: alert.look(self.store, now_s) for alert in self._alerts}
        self.firing = {name: labels for name, labels in looked.items() if labels}
        return self.firing.keys()

    @property
    def looked_s(self) -> float:
        """When it last looked."""
        return self._looks_s[-1]

    def total(self, name: str, **labels: str) -> float:
        """The sum of what members said of this last."""
        wanted = {("job", "zabd"), *labels.items()}
        series = self.store.series.get(name, {})
        return sum(points[-1][1] for known, points in series.items() if wanted <= known)

    async def watch(self, until: Callable[[], bool]) -> None:
        """Look on and on until this holds."""
        async with asyncio.timeout(PATIENCE_S):
            await self.look()
            while not until():
                await asyncio.sleep(EVERY_S)
                await self.look()

    async def _fetch(self, port: int) -> str:
        return await asyncio.to_thread(fetch, port, 2.0)

    async def _show(self, metrics: MemoryMetrics) -> str:
        return exposition(metrics)

    # Prometheus' own opinion.

    def ask_promtool(self, folder: Path) -> None:
        """Have promtool, where it is installed, judge the same samples: the same alerts fire."""
        if PROMTOOL is None:
            return
        ticks = 5 * math.ceil((self._looks_s[-1] - self._looks_s[0]) / 5)
        severities = {alert.name: alert.severity for alert in self._alerts}
        expected = [
            _series(
                "ALERTS",
                {
                    **dict(labels),
                    "alertname": name,
                    "alertstate": "firing",
                    "severity": severities[name],
                },
            )
            for name, firing in self.firing.items()
            for labels in firing
        ]
        question = {
            "expr": 'ALERTS{alertstate="firing"}',
            "eval_time": f"{ticks}s",
            "exp_samples": [{"labels": series, "value": 1} for series in expected],
        }
        inputs = [
            {"series": _series(name, dict(labels)), "values": self._values(points, ticks)}
            for name, by_labels in self.store.series.items()
            for labels, points in by_labels.items()
        ]
        case = {"interval": "1s", "input_series": inputs, "promql_expr_test": [question]}
        file = folder / "promtool.json"  # which YAML is as well
        document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1s", "tests": [case]}
        file.write_text(json.dumps(document), "utf-8")
        answer = subprocess.run(
            [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr

    def _values(self, points: list[Point], ticks: int) -> str:
        """One value a second: the last that had come by then."""
        values: list[str] = []
        for tick in range(ticks + 1):
            until_s = min(self._looks_s[0] + tick, self._looks_s[-1])
            known = [value for at, value in points if at <= until_s]
            values.append("_" if not known else "stale" if known[-1] is STALE else repr(known[-1]))
        return " ".join(values)


def _series(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}"
