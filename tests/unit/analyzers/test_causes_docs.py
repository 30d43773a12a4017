"""Every cause that an analyzer can report has its rule in docs/findings.md, and none has two.

The page also names, of each cause, a shipped trace that shows it and one that does not.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.analysis import Options, run_all
from gpuscope.communication import exchanges, measured
from gpuscope.model.result import Analysis
from gpuscope.readers import open_trace
from tests.unit.analyzers.test_causes_golden import CAUSES, analysis

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "findings.md").read_text("utf-8")
FIRST_SECTION = "pageable-copy"
"""Where the causes begin in the page."""
LAST_PART = "\n# Where each was seen\n"
SEEN = re.findall(
    r"^\| `([\w-]+)` \| `(\w+)`, (`[\w-]+`|any) \| `(\w+)`, (`[\w-]+`|any) \|$", PAGE, re.MULTILINE
)
"""Cause, trace and range that show it, trace and range that do not."""


def reported() -> Iterator[str]:
    for file in (ROOT / "analyzers").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                for value in (word.value for word in node.keywords if word.arg == "id"):
                    for part in ast.walk(value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            yield part.value


def test_every_cause_is_documented() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    causes = headings[headings.index(FIRST_SECTION) :]

    assert len(causes) == len(set(causes))
    assert set(causes) == set(reported())


def test_of_every_cause_it_is_said_where_it_was_seen() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE.partition(LAST_PART)[2], re.MULTILINE)

    assert len(rows) == len(set(rows))
    assert set(rows) == set(reported())
    assert [row[0] for row in SEEN] == rows[: len(SEEN)]


@functools.cache
def of_all_ranks(name: str) -> Analysis:
    """Return the analysis of one rank with the reports of both."""
    other = name[:-1] + ("1" if name.endswith("0") else "0")
    traces = [open_trace(samples.path(each)) for each in (name, other)]
    transfer_ns, late_rank = measured(exchanges(traces)[0])
    return run_all(traces[0], CAUSES, Options(transfer_ns=transfer_ns, late_rank=late_rank))


def ranges_with(cause: str, name: str) -> set[str]:
    """Return the ranges in which a cause is found, ``any`` where it is found in any or in none."""
    found = of_all_ranks(name) if re.search(r"_r[01]$", name) else analysis(name)
    ranges = {f"`{finding.range}`" for finding in found.findings if finding.id == cause}
    return {"any", *ranges} if ranges else set()


@pytest.mark.parametrize(("cause", "shown", "label", "clean", "clean_label"), SEEN)
def test_a_trace_shows_the_cause_and_its_twin_does_not(
    cause: str, shown: str, label: str, clean: str, clean_label: str
) -> None:
    assert label in ranges_with(cause, shown)
    assert clean_label not in ranges_with(cause, clean)
    texts = {f"`{text}`" for text in open_trace(samples.path(clean)).strings}
    assert clean_label in {"any", *texts}
