"""The ranges of the benchmarks as Nsight Systems records them; needs no GPU."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from gpuscope.benchmarks._harness.gpu import Ranges
ranges = Ranges("streams")
again = ranges.prepare("streamed")
with ranges.prepare("gs:measure", 2):
    for index in range(2):
        with ranges.prepare("gs:iter", index), again:
            pass
"""


@pytest.mark.nsys
def test_ranges_are_recorded_with_domain_category_and_payload(nsys: Path, tmp_path: Path) -> None:
    report, export = tmp_path / "report.nsys-rep", tmp_path / "report.sqlite"
    for command in (
        ["profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", str(report),
         sys.executable, "-c", PROGRAM],
        ["export", "-t", "sqlite", "-o", str(export), str(report)],
    ):  # fmt: skip
        subprocess.run([str(nsys), *command], check=True, capture_output=True, timeout=120)
    with sqlite3.connect(export) as connection:
        rows = connection.execute(
            """SELECT coalesce(event.text, string.value), event.eventType, event.int64Value,
                      event.domainId, event.category
               FROM NVTX_EVENTS event LEFT JOIN StringIds string ON string.id = event.textId
               ORDER BY event.start, event.end DESC"""
        ).fetchall()
    connection.close()
    found = [row for row in rows if row[1] == 59]
    assert found, "no range was recorded: nsys 2023.4 needs nvtx 0.2.11"
    domains = [domain for name, kind, _, domain, _ in rows if (name, kind) == ("gpuscope", 75)]
    assert len(domains) == 1
    categories = [number for name, kind, *_, number in rows if (name, kind) == ("streams", 33)]
    assert len(categories) == 1
    assert [(name, payload) for name, _, payload, _, _ in found] == [
        ("gs:measure", 2),
        ("gs:iter", 0),
        ("streamed", None),
        ("gs:iter", 1),
        ("streamed", None),
    ]
    assert {(domain, category) for *_, domain, category in found} == {(domains[0], categories[0])}
