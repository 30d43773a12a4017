"""Budgets: files of expectations, read, and proposed from a good run."""

from __future__ import annotations

import dataclasses
import glob
import math
import re
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.errors import CannotJudgeError, UsageError
from gpuscope.gates.grammar import Expectation, causes_of, parse
from gpuscope.gates.verify import CAUSES, inside_of, named_rows, verify
from gpuscope.measures import MAD_SCALE
from gpuscope.model.result import PairFigures, RangeResult, Scope
from gpuscope.model.trace import Trace
from gpuscope.units import NS_PER_S, printable
from gpuscope.verdicts import MATERIAL_SHARE

SCHEMA_VERSION = 1
KEYS = ("schema_version", "attribute", "expect")

MARGIN_MADS = 5.0
"""A bound lies this many scaled MADs of the run's own instances from what was measured …"""
RATIO_MARGIN = 0.05
"""… but ratios at least this much below: from run to run they differ more than inside one."""
TIME_MARGIN = 0.10
"""… and times and rates by at least this share."""
GOOD = ("overlapped", "pipelined")
"""Verdicts that a budget holds on to."""
SAFE_SHARE = 2 * MATERIAL_SHARE
"""A pair whose smaller class is busy for this share must not become immaterial."""

_NO_LOSS = ("limits", "trust", "not-seen", "driver-model")
"""Analyzers whose causes are no fault of the program's."""
_PLAIN = re.compile(r"[^\s:\"\[\]]+")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a budget file says."""

    expectations: tuple[Expectation, ...]
    attribute: str | None


def read_budget(text: str, source: str) -> Budget:
    """Read the text of a budget file called `source`.

    Raises
    ------
    UsageError
        It is no TOML, or not of this form, or an expectation in it does not parse.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{source} is no TOML: {error}."
        raise UsageError(msg) from None
    unknown = sorted(set(data) - set(KEYS))
    if unknown:
        msg = f"{source} has the unknown key {unknown[0]!r}; there are {', '.join(KEYS)}."
        raise UsageError(msg)
    if data.get("schema_version") != SCHEMA_VERSION:
        msg = f"{source} needs the line schema_version = {SCHEMA_VERSION}."
        raise UsageError(msg)
    expect = data.get("expect")
    if not isinstance(expect, list) or not expect or not all(isinstance(e, str) for e in expect):
        msg = f"{source} needs expect = [ … ], a list of at least one expectation as text."
        raise UsageError(msg)
    attribute = data.get("attribute")
    if attribute not in {None, "thread", "process"}:
        msg = f"{source}: attribute is 'thread' or 'process', not {attribute!r}."
        raise UsageError(msg)
    return Budget(tuple(parse(each, CAUSES, source) for each in expect), attribute)


def propose(
    runs: Sequence[Trace],
    options: Sequence[Options],
    *,
    attribute: str | None = None,
    times: bool = False,
) -> str:
    """Return the text of a budget that good runs meet, with margins from their own spread.

    Parameters
    ----------
    runs
        One good run, or several repetitions of it: the worst of them counts.
    options
        Of each, the ratio limits and transfer times.
    attribute
        Whose launches in a range's window belong to it.
    times
        Bound span and rates too, which belong to one kind of machine.

    Raises
    ------
    CannotJudgeError
        No pair overlapped in any range, or none of these can be judged.
    """
    measured = [
        _ranges(run, dataclasses.replace(each, attribute=attribute or "thread"))
        for run, each in zip(runs, options, strict=True)
    ]
    names = [
        name
        for name in dict.fromkeys(entry.name for entry in measured[0])
        if all(any(entry.name == name for entry in entries) for entries in measured)
    ]
    blocks: list[tuple[str, list[str]]] = []
    left_out: list[str] = []
    inside = set[str]()
    for name in names:
        entries = [entry for each in measured for entry in each if entry.name == name]
        lines = list(_range_lines(name, entries, times))
        if not lines or name in inside:
            continue
        reason = _unmet(lines, runs, options, attribute)
        if reason is not None:
            left_out.append(f"{name}: {reason}")
            continue
        blocks.append((name, lines + _cause_lines(name, runs, options, attribute)))
        inside |= {nested for run in runs for nested in _nested(run, name)}
    blocks = [(name, lines) for name, lines in blocks if name not in inside]
    if not blocks:
        why = f" {left_out[0]}." if left_out else ""
        msg = f"no range gives a budget: record a run in which something overlaps.{why}"
        raise CannotJudgeError(msg)
    return _text(blocks, left_out, runs, attribute)


def _nested(run: Trace, name: str) -> set[str]:
    """Return the names of the ranges that nest in those called `name`, but that itself."""
    assert run.ranges is not None
    pattern = _literal(name)
    rows = inside_of(run, pattern, by_path=False) & ~named_rows(run.ranges, run.strings, pattern)
    return {run.strings[index] for index in np.unique(run.ranges.name[rows]).tolist()}


def _ranges(run: Trace, options: Options) -> tuple[RangeResult, ...]:
    analyzers = [analyzer for analyzer in ANALYZERS if analyzer.name == "ranges"]
    analysis = run_all(run, analyzers, dataclasses.replace(options, instances=True))
    if analysis.abstained:
        msg = f"{run.path}: {analysis.abstained[0].reason}."
        raise CannotJudgeError(msg)
    return analysis.ranges


def _range_lines(name: str, entries: Sequence[RangeResult], times: bool) -> Iterator[str]:
    """Yield the bounds of one range: what overlapped in all entries must stay so."""
    good = {
        (pair.a, pair.b)
        for pair in entries[0].scope.pairs
        if all(_verdict(entry.scope, pair.a, pair.b) in GOOD for entry in entries)
    }
    for a, b in sorted(good):
        pairs = [(entry, entry.scope.pair(a, b)) for entry in entries]
        if any(pair is not None and pair.verdict == "pipelined" for _, pair in pairs):
            small, other = _by_size(entries[0].scope, a, b)
            figure = f"hidden_any({small}, {other})"
            least = min(_under_any(each.scope, pair, small) for each, pair in pairs) - RATIO_MARGIN
        else:
            figure = f"overlap({a}, {b})"
            least = min(_least_overlap(entry, a, b) for entry in entries)
        percent = math.floor(round(1000 * least, 6)) / 10  # 0.7 - 0.05 is 65 %
        if percent > 0:
            yield f"{quoted(name)}: {figure} >= {percent:g} %"
        if all(_share(entry.scope, a, b) >= SAFE_SHARE for entry in entries):
            yield f"{quoted(name)}: verdict({a}, {b}) != immaterial"
    if good and times:
        yield from _time_lines(name, entries)


def _verdict(scope: Scope, a: str, b: str) -> str | None:
    pair = scope.pair(a, b)
    return None if pair is None else pair.verdict


def _share(scope: Scope, a: str, b: str) -> float:
    """Return the busy time of the smaller class by that of the scope."""
    return min(scope.classes[a].busy_ns, scope.classes[b].busy_ns) / scope.busy_ns


def _by_size(scope: Scope, a: str, b: str) -> tuple[str, str]:
    return (a, b) if scope.classes[a].busy_ns <= scope.classes[b].busy_ns else (b, a)


def _under_any(scope: Scope, pair: PairFigures | None, small: str) -> float:
    assert pair is not None  # it has a verdict
    under = pair.a_under_any_b_ns if pair.a == small else pair.b_under_any_a_ns
    return (under or 0) / scope.classes[small].busy_ns


def _least_overlap(entry: RangeResult, a: str, b: str) -> float:
    """Return the lower bound of an overlap ratio that one entry suggests."""
    pair = entry.scope.pair(a, b)
    assert pair is not None
    assert pair.overlap_ratio is not None
    pairs = [instance.scope.pair(a, b) for instance in entry.per_instance or ()]
    ratios = [p.overlap_ratio for p in pairs if p is not None and p.overlap_ratio is not None]
    return pair.overlap_ratio - max(RATIO_MARGIN, MARGIN_MADS * _scaled_mad(ratios))


def _time_lines(name: str, entries: Sequence[RangeResult]) -> Iterator[str]:
    most = 0.0
    for entry in entries:
        spans = [instance.scope.span_ns for instance in entry.per_instance or ()]
        median = statistics.median(spans)
        most = max(most, median + max(TIME_MARGIN * median, MARGIN_MADS * _scaled_mad(spans)))
    yield f"{quoted(name)}: span <= {math.ceil(most / 1000):g} us"
    for copy in ("h2d", "d2h", "p2p"):
        found = [entry.scope.classes[copy] for entry in entries if copy in entry.scope.classes]
        if len(found) == len(entries) and all(each.bytes and each.busy_ns for each in found):
            rate = min(each.bytes * NS_PER_S / each.busy_ns for each in found)
            bound = math.floor((1 - TIME_MARGIN) * rate / 1e7) / 100
            if bound > 0:
                yield f"{quoted(name)}: rate({copy}) >= {bound:g} GB/s"


def _scaled_mad(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    median = statistics.median(values)
    return MAD_SCALE * statistics.median(abs(value - median) for value in values)


def _cause_lines(
    name: str, runs: Sequence[Trace], options: Sequence[Options], attribute: str | None
) -> list[str]:
    """Return the expectation that no cause appears that no run has, of those looked for."""
    limits = {cause for each in _NO_LOSS for cause in causes_of(each)}
    causes = [cause for cause in CAUSES if cause not in limits]
    expected = [parse(f"no {cause} in {quoted(name)}", CAUSES) for cause in causes]
    outcomes = [
        [row.met for row in verify([run], expected, [each], attribute=attribute).rows]
        for run, each in zip(runs, options, strict=True)
    ]
    absent = [cause for cause, *met in zip(causes, *outcomes, strict=True) if all(met)]
    return [f"no {'|'.join(absent)} in {quoted(name)}"] if absent else []


def _unmet(
    lines: Sequence[str], runs: Sequence[Trace], options: Sequence[Options], attribute: str | None
) -> str | None:
    """Say why the runs do not meet what they propose themselves: doubts about a range show here."""
    expectations = [parse(line, CAUSES) for line in lines]
    for run, each in zip(runs, options, strict=True):
        for row in verify([run], expectations, [each], attribute=attribute).rows:
            if not row.met:
                return row.text
    return None


def _text(
    blocks: Sequence[tuple[str, Sequence[str]]],
    left_out: Sequence[str],
    runs: Sequence[Trace],
    attribute: str | None,
) -> str:
    lines = [
        f"# Proposed from {printable(', '.join(run.path for run in runs))}. Ratios are at least",
        f"# {100 * RATIO_MARGIN:g} points below what was measured, times {TIME_MARGIN:.0%} above, "
        "more where instances scatter.",
        *(f"# Left out: {printable(each)}" for each in left_out),
        f"schema_version = {SCHEMA_VERSION}",
    ]
    if attribute is not None:
        lines.append(f'attribute = "{attribute}"')
    lines.append("expect = [")
    for name, expectations in blocks:
        lines.append(f"  # {printable(name)}")
        lines += [f"  {_toml_string(each)}," for each in expectations]
    return "\n".join([*lines, "]", ""])


def _toml_string(text: str) -> str:
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _literal(name: str) -> str:
    """Return the glob that matches nothing but `name`."""
    return glob.escape(name) if re.search(r"[*?\[]", name) else name


def quoted(name: str) -> str:
    """Return a name as an expectation writes it: no glob, and quoted where it must be."""
    literal = _literal(name)
    if _PLAIN.fullmatch(literal):
        return literal
    escaped = literal.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
