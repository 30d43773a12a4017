"""Limits one can only know about: the engines, and how the work is divided among them.

Three infos about ranges in which two kinds of work could overlap: the device has one copy engine
(`one-engine`), an engine is busy nearly all the time (`engine-saturated`), or one kind of work is
so long that hiding the others saves next to nothing (`imbalance`). The time that communication
kernels wait for their peers, as far as it is known, counts for neither of the last two, nor do
kernels that only wait for a signal.
"""

from __future__ import annotations

import functools
from itertools import chain

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.cases import USES, Case, Region
from gpuscope.intervals import Axis, length, union
from gpuscope.model.result import Finding, Result
from gpuscope.model.trace import Trace
from gpuscope.units import format_ns, format_ratio

SATURATED_SHARE = 0.90
"""Share of the span from which on a busy engine is the limit."""
BALANCED_SHARE = 0.05
"""Share of all engines' time that perfect overlap could save, below which there is imbalance."""
MIN_MINOR_SHARE = 0.01
"""Share of all engines' time that the lesser kinds of work must have to be worth a word."""
_ALL_RANKS = "read the reports of all ranks together, which tell transfer from waiting"


def run(trace: Trace, options: Options) -> Result:
    """Look for limits of the engines."""
    case = Case.of(trace, options)
    rules = (
        functools.partial(_one_engine, case),
        functools.partial(_saturated, case, options),
        functools.partial(_imbalance, case, options),
    )
    found = [case.search(rule) for rule in rules]
    return Result(findings=tuple(chain.from_iterable(found)))


def _one_engine(case: Case, region: Region) -> Finding | None:
    if not region.single_engine or not {"h2d", "d2h"} <= set(region.material):
        return None
    both = region.engines_ns["h2d"]
    return case.finding(
        region,
        id="one-engine",
        severity="info",
        claim=(
            "the device has one copy engine: copies to and from it cannot overlap, and take "
            f"{format_ns(both)} in all"
        ),
        mechanism="the device reports one asynchronous copy engine",
        removable="unknown",
        advice="hide the copies under kernels: that, and no more, this device can do",
        evidence={"copies_ns": both, "classes_ns": region.class_busy_ns},
    )


def _engines_ns(case: Case, options: Options, region: Region) -> dict[str, int]:
    """Return how long every engine worked: communication while data moved, as far as it is known.

    Where nothing tells, its kernels count whole.
    """
    engines = region.engines_ns
    if "comm" not in engines:
        return engines
    mine = case.messages(region)
    rows = region.rows[mine]
    start, end = case.ops.start_ns[rows], case.ops.end_ns[rows]
    if options.moving_ns is not None:
        moving = options.moving_ns[rows]
        start = np.where(moving >= 0, np.maximum(start, end - moving), start)
    shift = Axis.lay_out(region.begin_ns, region.finish_ns).shift[region.instance[mine]]
    return {**engines, "comm": length(union(start + shift, end + shift))}


def _waiting_told(case: Case, options: Options, region: Region) -> bool:
    """Say whether the other ranks tell of every message how long it waited."""
    rows = region.rows[case.messages(region)]
    return options.transfer_ns is not None and bool((options.transfer_ns[rows] >= 0).all())


def _saturated(case: Case, options: Options, region: Region) -> Finding | None:
    if len(region.material) < 2:
        return None
    engines = _engines_ns(case, options, region)
    engine = max(engines, key=lambda name: engines[name])
    bound_ns = engines[engine]
    if bound_ns < SATURATED_SHARE * region.span_ns:
        return None
    share = bound_ns / region.span_ns
    what = {
        "kernel": "kernels run",
        "comm": "communication kernels run",
        "memset": "memory sets run",
    }.get(engine, f"{engine} copies run")
    limit = "better overlap cannot save more"
    advice = "shorten that work itself: overlap is as good as it gets"
    if engine == "comm":
        if _waiting_told(case, options, region):
            what = "communication kernels move data"
        else:
            limit = f"unless they wait for late peers, {limit}"
            advice = _ALL_RANKS
    return case.finding(
        region,
        id="engine-saturated",
        severity="info",
        claim=f"{what} {format_ratio(share)} of the time: {limit}",
        mechanism=f"{engine} is busy for {format_ns(bound_ns)}",
        removable="unknown",
        advice=advice,
        evidence={
            "engine": engine,
            "share": share,
            "bound_ns": bound_ns,
            "classes_ns": region.class_busy_ns,
        },
    )


def _imbalance(case: Case, options: Options, region: Region) -> Finding | None:
    engines = _engines_ns(case, options, region)
    longest = max(engines, key=lambda name: engines[name])
    total = sum(engines.values())
    bound_ns = engines[longest]
    rest = total - bound_ns
    if not MIN_MINOR_SHARE * total <= rest < BALANCED_SHARE * total:
        return None
    if "kernel" not in engines or not set(engines) & {"h2d", "d2h", "p2p", "comm"}:
        return None
    advice = f"shorten {longest}, or leave the overlap as it is"
    if longest == "comm" and not _waiting_told(case, options, region):
        advice = _ALL_RANKS
    return case.finding(
        region,
        id="imbalance",
        severity="info",
        claim=(
            f"{longest} takes {format_ns(bound_ns)} and all else {format_ns(rest)}: perfect "
            f"overlap takes {format_ratio(rest / total)} less than one after the other, at most"
        ),
        mechanism="the kinds of work differ too much in length to hide each other",
        removable="unknown",
        advice=advice,
        evidence={
            "bound_ns": bound_ns,
            "classes_ns": region.class_busy_ns,
            "at_most_ns": rest,
        },
    )


ANALYZER = Analyzer(
    name="limits",
    summary="what the engines and the division of work allow at most",
    needs=("operations",),
    run=run,
    uses=("api", *USES),
)
