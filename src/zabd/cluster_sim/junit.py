"""The results of a sweep as JUnit XML, which build servers show without being taught.

Up to a thousand seeds are a case each. Of more, a hundred are one case; those that failed are a
case each all the same.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from zabd.cluster_sim.journal import Journal

CASES_MAX: Final = 1_000
CHUNK: Final = 100


def write_junit(path: Path, journal: Journal, seeds: range) -> None:
    """Write what is known of these seeds; those that have not been run are skipped cases."""
    failed = {entry["seed"]: entry for entry in journal.failed}
    head = journal.head
    name = f"zabctl sim run, level {head['level']}, strategy {head['strategy']}"
    suite = ET.Element("testsuite", name=name)
    for chunk in _chunks(seeds):
        for case in _cases(journal, chunk, failed):
            case.set("classname", f"zabd.cluster_sim.{head['level']}")
            suite.append(case)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    suite.set("time", f"{journal.totals.cpu_s:.3f}")
    tree = ET.ElementTree(suite)
    ET.indent(tree)
    tree.write(path, encoding="utf-8", xml_declaration=True)


def _chunks(seeds: range) -> Iterator[range]:
    size = 1 if len(seeds) <= CASES_MAX else CHUNK
    return (seeds[at : at + size] for at in range(0, len(seeds), size))


def _cases(
    journal: Journal, chunk: range, failed: Mapping[int, Mapping[str, Any]]
) -> Iterator[ET.Element]:
    """One case for those that held, one for each that failed, one for those that are not done."""
    bad = [seed for seed in chunk if seed in failed]
    left = sum(seed not in journal.done for seed in chunk)
    for seed in bad:
        yield _failed_case(journal, failed[seed])
    if len(chunk) - len(bad) - left:
        yield ET.Element("testcase", name=_name(chunk))
    if left:
        case = ET.Element("testcase", name=f"{_name(chunk)}: {left} not run")
        ET.SubElement(case, "skipped", message=f"{left} of {len(chunk)} have not been run")
        yield case


def _failed_case(journal: Journal, entry: Mapping[str, Any]) -> ET.Element:
    lines = journal.explain(entry)
    case = ET.Element("testcase", name=f"seed {entry['seed']}", time=f"{entry['cpu_s']:.3f}")
    told = ET.SubElement(case, "failure", type=entry["failure"]["check"], message=lines[0])
    told.text = "".join(c if c.isprintable() or c == "\n" else "?" for c in "\n".join(lines))
    return case


def _name(chunk: range) -> str:
    return f"seed {chunk[0]}" if len(chunk) == 1 else f"seeds {chunk[0]} to {chunk[-1]}"
