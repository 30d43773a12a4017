"""What an analyzer is, the check of what it needs, and running several on one trace."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.intervals import length, union
from gpuscope.model.exchange import Exchange
from gpuscope.model.result import Abstention, Analysis, Finding, Result, Scope, TraceSummary
from gpuscope.model.trace import Trace
from gpuscope.progress import Progress, silent

LARGE_OPERATIONS = 200_000
"""From this many operations on, the lanes of analyzers run at the same time."""

_LONGEST_FIRST = ("causes", "figures", "devices", "schedule")
"""The order in which lanes begin, so that the processors are done at about the same time."""

RatioLimits = Mapping[tuple[str, str, str], float | None]
"""(range, a, b), a < b, to the largest overlap ratio the schedule allows; None: not judged."""


PERTURBED = "perturbed"
"""Id of the finding that the profiler changed what it recorded; a mark on all others then."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; every analyzer takes what concerns it."""

    ranges: tuple[str, ...] = ()
    """Range names or globs to report; empty: all."""
    domains: tuple[str, ...] = ()
    """NVTX domains to report; empty: all. The default domain is the empty name."""
    categories: tuple[str, ...] = ()
    """NVTX categories to report, by number or by name or glob; empty: all."""
    window_ns: tuple[int, int] | None = None
    """Clip the device scopes to [start, end) on the trace's clock."""
    by_path: bool = False
    """Report ranges by nesting path instead of by name."""
    attribute: str = "thread"
    """``thread`` or ``process``: whose launches in a range's window belong to it."""
    instances: bool = False
    """Report every instance's scope too."""
    ratio_limits: RatioLimits = field(default_factory=dict)
    transfer_ns: npt.NDArray[np.int64] | None = None
    """Of each operation, the time that its data took as learnt from the other ranks' traces."""
    late_rank: npt.NDArray[np.int64] | None = None
    """Of each operation, the rank that arrived last at its message; -1 where that is unknown."""
    perturbed: Mapping[str, float] = field(default_factory=dict)
    """Passes that took far longer or less under the profiler, and by what ratio (0.25: longer)."""
    exchange: Exchange | None = None
    """What is known of the communication kernels, alone or with the other ranks' traces."""

    @property
    def moving_ns(self) -> npt.NDArray[np.int64] | None:
        """Of each operation, the time that its data took, estimated where no other rank tells."""
        if self.transfer_ns is not None or self.exchange is None:
            return self.transfer_ns
        return self.exchange.transfer_ns


@dataclass(frozen=True, slots=True)
class Analyzer:
    """One analyzer: what it is called, what it needs, and the function that runs it."""

    name: str
    """File name with ``-`` for ``_``, CLI name and heading in the docs."""
    summary: str
    """One line for ``gpuscope list``."""
    needs: tuple[str, ...]
    """Names of the tables of the trace it cannot do without, such as ``operations``."""
    run: Callable[[Trace, Options], Result]
    uses: tuple[str, ...] = ()
    """Names of the tables that it also looks at where the trace has them."""
    lane: str = "causes"
    """Analyzers of one lane run one after the other, and share what they find out on the way."""
    completes: tuple[str, ...] = ()
    """Names of the analyzers whose scopes it adds figures to: these run with it."""


_TABLE_MEANING = {
    "operations": "no GPU activity (record with -t cuda, if there was any)",
    "api": "no CUDA API calls (record with -t cuda)",
    "ranges": "no NVTX ranges (record with -t nvtx, and annotate the program)",
    "mpi": "no MPI calls (record with -t mpi)",
    "syncs": "no synchronization records",
    "event_records": "no CUDA event records",
    "kernel_configs": "no launch configurations of kernels",
}


def chosen(analyzers: Sequence[Analyzer], names: Collection[str]) -> tuple[Analyzer, ...]:
    """Return the analyzers of these names, with those whose scopes they complete; all for none."""
    asked = [analyzer for analyzer in analyzers if not names or analyzer.name in names]
    needed = {analyzer.name for analyzer in asked}.union(*(each.completes for each in asked))
    return tuple(analyzer for analyzer in analyzers if analyzer.name in needed)


def tables_for(analyzers: Sequence[Analyzer]) -> frozenset[str]:
    """Return the names of the tables that `analyzers` look at: what a reader must read."""
    return frozenset(chain.from_iterable((*a.needs, *a.uses) for a in analyzers))


def missing_tables(analyzer: Analyzer, trace: Trace) -> str | None:
    """Say what `trace` lacks for `analyzer`, or return None when it has all."""
    missing = [need for need in analyzer.needs if getattr(trace, need) is None]
    meaning = dict(_TABLE_MEANING)
    if trace.api:
        meaning["operations"] = (
            "CUDA was called, but no GPU work was recorded: the program launched none, or was "
            "killed before the profiler had it"
        )
    return "; ".join(meaning[need] for need in missing) or None


def _marked(findings: Sequence[Finding]) -> list[Finding]:
    """Mark every finding of a trace that the profiler changed: it may be of its making."""
    if all(finding.id != PERTURBED for finding in findings):
        return list(findings)
    return [
        finding
        if finding.id == PERTURBED
        else dataclasses.replace(finding, evidence={**finding.evidence, PERTURBED: True})
        for finding in findings
    ]


def _told_together(findings: Sequence[Finding]) -> list[Finding]:
    """Say of findings about one range what they save together, where that is less than their sum.

    Work that two of them name may have been held up in the same time, and overlap saves it once. It
    concerns what was held up (``held_ns``) or is limited (``limit_ns``): together they save no more
    than the time that any of them names, nor than the largest limit.
    """
    places: dict[tuple[object, ...], list[int]] = {}
    for number, finding in enumerate(findings):
        if finding.saving_ns and finding.evidence.keys() & {"held_ns", "limit_ns"}:
            # The same name may be on several levels of ranges.
            window = tuple(finding.evidence.get("window_ns", ()))
            place = finding.process, finding.device, finding.range, window
            places.setdefault(place, []).append(number)
    told = [dataclasses.replace(finding, held=None) for finding in findings]
    for numbers in places.values():
        mine = [findings[number] for number in numbers]
        savings = [finding.saving_ns or 0 for finding in mine]
        limits = [each.evidence["limit_ns"] for each in mine if "limit_ns" in each.evidence]
        at_most_ns = _held_by_any_ns(mine)
        if limits:
            at_most_ns = min(at_most_ns, max([*limits, *savings]))
        if sum(savings) <= at_most_ns:
            continue
        for number, finding in zip(numbers, mine, strict=True):
            others = [other.id for other in mine if other is not finding]
            together = {"with": others, "at_most_ns": at_most_ns}
            told[number] = dataclasses.replace(
                told[number], evidence={**finding.evidence, "together": together}
            )
    return told


def _held_by_any_ns(findings: Sequence[Finding]) -> int:
    """Return the time that any of the findings names, and what some save beyond what they name."""
    named = [np.stack(each.held) for each in findings if each.held]
    start, end = np.concatenate([np.empty((2, 0), np.int64), *named], axis=1)
    beyond = (
        (each.saving_ns or 0) - (length(union(*each.held)) if each.held else 0) for each in findings
    )
    return length(union(start, end)) + sum(max(0, ns) for ns in beyond)


def _run(trace: Trace, analyzer: Analyzer, options: Options) -> Result | Abstention:
    reason = missing_tables(analyzer, trace)
    return analyzer.run(trace, options) if reason is None else Abstention(analyzer.name, reason)


def run_all(
    trace: Trace,
    analyzers: Sequence[Analyzer],
    options: Options,
    progress: Progress = silent,
) -> Analysis:
    """Run `analyzers` on `trace`; one that lacks a table abstains with the reason.

    Findings are ordered by what they would save, the unknown last.
    """
    lanes: dict[str, list[int]] = {lane: [] for lane in _LONGEST_FIRST}
    for number, analyzer in enumerate(analyzers):
        lanes.setdefault(analyzer.lane, []).append(number)
    finished: list[int] = []

    def work(numbers: Sequence[int]) -> list[tuple[int, Result | Abstention]]:
        outcomes = []
        for number in numbers:
            progress("analyzing", len(finished), len(analyzers))
            outcomes.append((number, _run(trace, analyzers[number], options)))
            finished.append(number)
        return outcomes

    # NumPy lets other threads work while it does; small traces are done before these start.
    large = len(trace.operations or ()) >= LARGE_OPERATIONS
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = [*(pool.map if large else map)(work, lanes.values())]
    outcomes = [outcome for _, outcome in sorted(chain.from_iterable(done), key=itemgetter(0))]
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    abstained = [outcome for outcome in outcomes if isinstance(outcome, Abstention)]
    found = [finding for result in results for finding in result.findings]
    findings = sorted(
        _told_together(_marked(found)),
        key=lambda finding: (finding.severity != "warning", -(finding.saving_ns or 0)),
    )
    added: _Added = {}
    for extra in chain.from_iterable(result.additions for result in results):
        added.setdefault((extra.process, extra.device, extra.range), {}).update(extra.figures)
    return Analysis(
        trace=TraceSummary(
            path=trace.path,
            format=trace.format,
            tool_version=trace.tool_version,
            duration_ns=trace.duration_ns,
            operations=0 if trace.operations is None else len(trace.operations),
            damaged=sum(trace.damaged.values()),
            lost_records=trace.lost_records,
            notes=trace.notes,
            missing_ranks=trace.missing_ranks,
        ),
        devices=tuple(
            dataclasses.replace(
                each, scope=_completed(each.scope, added, each.process, each.device)
            )
            for each in chain.from_iterable(result.devices for result in results)
        ),
        ranges=tuple(
            dataclasses.replace(
                each,
                scope=_completed(
                    each.scope, added, each.process, each.device, each.path or each.name
                ),
            )
            for each in chain.from_iterable(result.ranges for result in results)
        ),
        links=tuple(chain.from_iterable(result.links for result in results)),
        link_pairs=tuple(chain.from_iterable(result.link_pairs for result in results)),
        findings=tuple(findings),
        communication=tuple(chain.from_iterable(result.communication for result in results)),
        abstained=(*abstained, *chain.from_iterable(result.abstained for result in results)),
    )


_Added = dict[tuple[int, int, str | None], dict[str, Any]]


def _completed(
    scope: Scope, added: _Added, process: int, device: int, name: str | None = None
) -> Scope:
    return dataclasses.replace(scope, **added.get((process, device, name), {}))
