"""What to type after a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from gpuscope.model.gates import Verification
from gpuscope.model.result import Analysis, PairFigures
from gpuscope.units import printable

_LOST = frozenset(("serialized", "partial"))
_HAD = frozenset(("overlapped", "pipelined"))


def next_steps(analyses: Sequence[Analysis], named: Sequence[str]) -> list[tuple[str, str]]:
    """Return commands and what each is for, the most useful first.

    `named` are the traces, or the folder of the run, as the user wrote them.
    """
    if not any(analysis.trace.operations for analysis in analyses):
        return []
    traces = " ".join(map(shlex.quote, named))
    verdicts = {pair.verdict for analysis in analyses for pair in _pairs(analysis)}
    causes = any(each.severity == "warning" for one in analyses for each in one.findings)
    lost = causes or bool(verdicts & _LOST)
    steps = []
    if lost:
        option = next((_option(name) for each in analyses for name in _lost_in(each)), "")
        steps.append((f"gpuscope explain {traces}{option}", "what its operations waited for"))
    steps.append((f"gpuscope view {traces}", "the same on a timeline"))
    if not lost and verdicts & _HAD:
        step = f"gpuscope verify --record {traces} -o budget.toml"
        steps.append((step, "a test that fails when this is lost"))
    return steps


def after_gates(verification: Verification, named: Sequence[str]) -> list[tuple[str, str]]:
    """Return what tells why the first expectation that is not met is not; nothing where none is."""
    row = next((row for row in verification.rows if row.met is False), None)
    if row is None:
        return []
    name = next((each.range for each in row.scopes if each.met is False), None)
    option = "--path" if row.expectation.startswith("path ") else "--range"
    asked = "" if name is None else _option(name, option)
    return [(f"gpuscope analyze {' '.join(map(shlex.quote, named))}{asked}", "why it is not met")]


def _pairs(analysis: Analysis) -> Iterator[PairFigures]:
    """Yield the pairs of ranges, of devices where there is no range."""
    for entry in analysis.ranges or analysis.devices:
        yield from entry.scope.pairs


def _lost_in(analysis: Analysis) -> Iterator[str]:
    """Yield the ranges in which overlap was lost, those with a cause first."""
    names = {entry.path or entry.name: entry.name for entry in analysis.ranges}
    for finding in analysis.findings:
        if finding.severity == "warning" and finding.range in names:
            yield names[finding.range]
    for entry in analysis.ranges:
        if any(pair.verdict in _LOST for pair in entry.scope.pairs):
            yield entry.name


def _option(name: str, option: str = "--range") -> str:
    """Return the option that names a range; none where its name cannot be typed."""
    return f" {option} {shlex.quote(name)}" if name == printable(name, None) else ""
