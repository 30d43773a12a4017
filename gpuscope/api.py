"""From a path to an answer: opening traces and reports, analyzing them, judging benchmarks."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from gpuscope import communication
from gpuscope.analysis import Analyzer, Options, RatioLimits, run_all, tables_for
from gpuscope.analyzers import ANALYZERS
from gpuscope.benchmarks import NOT_JUDGED, NOT_OBSERVABLE
from gpuscope.errors import CannotJudgeError, TraceError, UsageError
from gpuscope.gates import budget
from gpuscope.gates import compare as comparing
from gpuscope.gates import verify as verifying
from gpuscope.gates.asking import Figures, ask
from gpuscope.gates.grammar import Expectation
from gpuscope.model.classes import ClassRule
from gpuscope.model.comparison import Comparison
from gpuscope.model.gates import Verification
from gpuscope.model.result import (
    Analysis,
    JudgedHidden,
    JudgedPair,
    JudgedPeak,
    JudgedPingPong,
    Judgement,
    LinkPair,
    PairFigures,
    RangeResult,
    Scope,
)
from gpuscope.model.trace import RUN_TRACES, Trace, run_of_ranks
from gpuscope.progress import Progress, silent
from gpuscope.readers import cache, results, settings
from gpuscope.readers import open_trace as read_export
from gpuscope.recording import history
from gpuscope.recording.folder import RunFolder, rank_folders, ranks_without_trace
from gpuscope.units import NS_PER_S, counted, format_ratio

_T = TypeVar("_T")
REPORT_SUFFIX = ".nsys-rep"


def find_trace(path: Path) -> Path:
    """Return the trace that `path` names: itself, or the one in a run folder.

    ``last`` and ``last~1`` are runs of the folder `runs`, here and wherever a trace is named.

    Raises
    ------
    TraceError
        The folder holds no trace, or there are not so many runs.
    """
    path = history.find_run(path)
    found = _trace_in(path)
    if not found.is_dir():
        return found
    of_ranks = sorted(inside.name for inside in path.glob("rank*") if inside.is_dir())
    if of_ranks:
        msg = f"{path} is a run of {len(of_ranks)} ranks: name one, such as {path / of_ranks[0]}."
        raise TraceError(msg)
    msg = f"{path} is a folder without {' or '.join(RUN_TRACES)}: name a trace or a run folder."
    raise TraceError(msg)


def _trace_in(path: Path) -> Path:
    """Return the trace in a folder; `path` itself where it is no folder, or holds none."""
    return next((path / name for name in RUN_TRACES if (path / name).exists()), path)


def of_ranks(paths: Sequence[Path], *, complete: bool = False) -> list[Path]:
    """Return `paths`, the folders of the ranks in the place of a run folder of several ranks.

    Those without a trace are left out, unless all have none: :func:`left_out` names them.

    Raises
    ------
    UsageError
        One of them is named twice, and would be taken for two ranks.
    CannotJudgeError
        A rank has no trace, and the ranks must be `complete`.
    """
    found: list[Path] = []
    for path in map(history.find_run, paths):
        inside = rank_folders(path)
        recorded = [own for own in inside if RunFolder(own).has_trace()]
        missing, count = ranks_without_trace(path)
        if complete and recorded and missing:
            msg = (
                f"{path}: {_without_trace(missing, count)}, and what is to hold on all ranks "
                f"cannot be judged; name the ranks that you mean, such as {recorded[0]}."
            )
            raise CannotJudgeError(msg)
        found += recorded or inside or [path]
    return _each_once(found)


def answer(named: Sequence[Path], answers: Sequence[_T]) -> _T | Sequence[_T]:
    """Return what the JSON holds of the `answers` about the traces `named`: an array, or the one.

    A run of ranks has an array, however many of them there were or left a trace: who reads it need
    not know that.
    """
    return answers if len(named) > 1 or any(map(is_of_ranks, named)) else answers[0]


def is_of_ranks(path: Path) -> bool:
    """Whether `path` names the folder of a run of ranks, were it only one."""
    return bool(rank_folders(history.find_run(path)))


def left_out(path: Path) -> tuple[tuple[int, ...], str]:
    """Return which ranks beside the first one recorded, `path`, have no trace, and a sentence.

    Nothing is missing beside any other path.
    """
    own = history.find_run(path)
    recorded = (each for each in rank_folders(own.parent) if RunFolder(each).has_trace())
    missing, count = ranks_without_trace(own.parent) if own == next(recorded, None) else ((), 0)
    return missing, f"{_without_trace(missing, count)} and left out" if missing else ""


def _without_trace(missing: Sequence[int], count: int) -> str:
    """Say which of `count` ranks have no trace."""
    are = "is" if len(missing) == 1 else "are"
    return f"rank {', '.join(map(str, missing))} of {counted(count, 'rank')} {are} without a trace"


def _each_once(paths: list[Path]) -> list[Path]:
    """Return `paths`, of which none may be named twice: one trace is no two ranks or runs."""
    places = _places(paths)
    for place, path in zip(places, paths, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{path} is named twice: name each trace once.")
    return paths


def _places(paths: Sequence[Path]) -> list[Path]:
    """Return where the traces that `paths` name lie, whatever they are called."""
    return [_trace_in(path).resolve() for path in paths]


def open_trace(
    path: Path,
    rules: Sequence[ClassRule] = (),
    analyzers: Sequence[Analyzer] | None = None,
    progress: Progress = silent,
    *,
    use_cache: bool = True,
) -> Trace:
    """Read the SQLite export, the ``.nsys-rep`` report or the run folder `path`.

    A report is exported by the installed Nsight Systems into the user's cache folder, once; nothing
    is written beside it. Class `rules` go before those of ``gpuscope.toml`` in the current folder,
    and these before the built-in ones. With `analyzers` only the
    tables are read that these look at. What is read of a large export is kept in the cache folder,
    and taken from there the next time, unless `use_cache` is false.

    Raises
    ------
    TraceError
        There is no such file, or it is no trace, or damaged beyond reading.
    MissingError
        A report must be exported and no Nsight Systems is there, or only an older one.
    """
    tables = None if analyzers is None else tables_for(analyzers)
    rules = (*rules, *settings.class_rules())
    trace = read_export(find_export(path), rules, tables, progress, use_cache=use_cache)
    missing, note = left_out(path)
    # What was read may be a cached export: the trace is named as the user named it.
    return dataclasses.replace(
        trace,
        path=str(find_trace(path)),
        missing_ranks=missing,
        notes=(*([note] if note else []), *trace.notes),
    )


def find_export(path: Path) -> Path:
    """Return the SQLite export of the trace that `path` names, made first if need be.

    Raises
    ------
    TraceError, MissingError
        As :func:`open_trace`.
    """
    path = find_trace(path)
    if path.suffix != REPORT_SUFFIX or not path.is_file():
        return path
    from gpuscope.recording import nsys

    if not nsys.is_report(path):
        return path  # reading it says what it is; some name any trace .nsys-rep
    target = cache.export_path(path)
    if not target.exists():
        nsys.export(path, target)
    cache.use(target)
    return target


def analyze_trace(
    trace: Trace,
    options: Options | None = None,
    analyzers: Sequence[Analyzer] = ANALYZERS,
    progress: Progress = silent,
) -> Analysis:
    """Run the analyzers on a trace that was read."""
    return run_all(trace, analyzers, options or Options(), progress)


def analyze_together(
    traces: Sequence[Trace],
    options: Sequence[Options],
    analyzers: Sequence[Analyzer] = ANALYZERS,
    progress: Progress = silent,
) -> tuple[Analysis, ...]:
    """Analyze the traces of one run: what one rank waited for, the others' traces say."""
    analyses = (
        analyze_trace(trace, dataclasses.replace(each, **known), analyzers, progress)
        for trace, each, known in zip(traces, options, exchanged(traces), strict=True)
    )
    apart = communication.apart(traces)
    return tuple(dataclasses.replace(each, apart=apart) for each in analyses)


def verify(
    paths: Sequence[Path],
    expectations: Sequence[Expectation],
    *,
    attribute: str | None = None,
    domains: Sequence[str] = (),
    window: str | None = None,
    rules: Sequence[ClassRule] = (),
    progress: Progress = silent,
    use_cache: bool = True,
) -> Verification:
    """Hold expectations against the traces at `paths`, several as the ranks of one run.

    See :func:`gpuscope.gates.verify.verify`; class `rules` go before the built-in ones. Only ranges
    of the NVTX `domains` count, if any are given, and whole traces are clipped to the `window`, as
    :func:`parse_window` takes it.
    """
    traces = [open_trace(path, rules, None, progress, use_cache=use_cache) for path in paths]
    options = [
        dataclasses.replace(
            each,
            domains=tuple(domains),
            window_ns=None if window is None else parse_window(window, trace.origin_ns),
        )
        for each, trace in zip(_options(paths, traces), traces, strict=True)
    ]
    return verifying.verify(traces, expectations, options, attribute=attribute)


def compare(
    before: Sequence[Path],
    after: Sequence[Path],
    *,
    paths: Sequence[str] = (),
    rules: Sequence[ClassRule] = (),
    progress: Progress = silent,
    use_cache: bool = True,
) -> Comparison:
    """Compare two runs, or two sets of repetitions; a folder of runs stands for all in it.

    See :func:`gpuscope.gates.compare.compare`; class `rules` go before the built-in ones. A trace
    that is on both sides is told in a note.

    Raises
    ------
    UsageError
        A trace is named twice on one side, or the traces of one are of different ranks: they would
        be taken for repetitions.
    """
    sides = [all_repetitions(side) for side in (before, after)]
    traces = [
        [open_trace(path, rules, None, progress, use_cache=use_cache) for path in side]
        for side in sides
    ]
    for side in traces:
        ranks = {frozenset(process.rank for process in trace.processes) - {None} for trace in side}
        if run_of_ranks(side) is not None or len(ranks - {frozenset()}) > 1:
            msg = (
                f"{' and '.join(trace.path for trace in side)} are of different ranks, no "
                "repetitions: name the folders of the runs, or a rank's on each side."
            )
            raise UsageError(msg)
    options = [told_beside(path) for side in sides for path in side]
    found = comparing.compare(traces[0], traces[1], options, paths=paths)
    others = _places(sides[1])
    twice = tuple(
        f"{path} stands on both sides: it is compared with itself"
        for path, place in zip(found.before, _places(sides[0]), strict=True)
        if place in others
    )
    missing = tuple(f"{path}: {note}" for path in chain(*sides) if (note := left_out(path)[1]))
    return dataclasses.replace(found, notes=(*twice, *missing, *found.notes))


def by_rank(before: Sequence[Path], after: Sequence[Path]) -> list[tuple[list[Path], list[Path]]]:
    """Return what to compare with what: runs of several ranks rank by rank, others as they are.

    Raises
    ------
    UsageError
        The runs have not equally many ranks, or one is named twice on one side.
    CannotJudgeError
        No rank has a trace on both sides.
    """
    runs = [all_repetitions(side) for side in (before, after)]
    counts = sorted({ranks_without_trace(run)[1] or 1 for run in chain(*runs)})
    if len(counts) > 1:
        msg = (
            f"the runs have {' and '.join(map(str, counts))} ranks: compare runs of equally many, "
            "or name the folder of one rank on each side."
        )
        raise UsageError(msg)
    sides = [[of_ranks([run]) for run in side] for side in runs]
    if counts[-1] > 1:
        names = set.intersection(*({own.name for own in run} for run in chain(*sides)))
        if not names:
            msg = "no rank has a trace on both sides: record the runs again."
            raise CannotJudgeError(msg)
        sides = [[[own for own in run if own.name in names] for run in side] for side in sides]
    before_of, after_of = ([list(rank) for rank in zip(*side, strict=True)] for side in sides)
    return list(zip(before_of, after_of, strict=True))


def all_repetitions(side: Sequence[Path]) -> list[Path]:
    """Return the runs of one side of a comparison: those of a folder that holds some, else itself.

    Raises
    ------
    UsageError
        One of them is named twice.
    """
    return _each_once([run for path in side for run in _repetitions(path)])


def _repetitions(path: Path) -> list[Path]:
    """Return the runs in a folder that is no run itself, else the run that `path` names."""
    path = history.find_run(path)
    if not path.is_dir() or RunFolder(path).has_trace() or of_ranks([path]) != [path]:
        return [path]
    return [run.path for run in history.runs_in(path)] or [path]


def asker(paths: Sequence[Path], *, attribute: str | None = None) -> Callable[..., Figures]:
    """Return a function that gives the figures of a range in the traces of one run at `paths`.

    It takes what :func:`gpuscope.gates.asking.ask` takes after traces and options.
    """
    traces = [open_trace(path) for path in paths]
    return functools.partial(ask, traces, _options(paths, traces), attribute=attribute)


def propose_budget(
    paths: Sequence[Path],
    *,
    attribute: str | None = None,
    rules: Sequence[ClassRule] = (),
    times: bool = False,
) -> str:
    """Return a budget that the good runs at `paths` meet: see :func:`gates.budget.propose`.

    Of a run of several ranks each must meet it.

    Raises
    ------
    UsageError
        A run is named twice, and would be taken for two repetitions.
    """
    traces: list[Trace] = []
    options: list[Options] = []
    for run in [
        of_ranks([path], complete=True) for path in _each_once([*map(history.find_run, paths)])
    ]:
        of_run = [open_trace(path, rules) for path in run]
        traces += of_run
        options += _options(run, of_run)
    return budget.propose(traces, options, attribute=attribute, times=times)


def _options(paths: Sequence[Path], traces: Sequence[Trace]) -> list[Options]:
    """Return what is known of the traces of one run beside them: limits and transfer times."""
    return [
        dataclasses.replace(told_beside(path), **known)
        for path, known in zip(paths, exchanged(traces), strict=True)
    ]


def exchanged(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return, for each trace of one run, the options that say what the ranks' messages were."""
    found = []
    for exchange in communication.exchanges(traces):
        transfer, late = communication.measured(exchange)
        found.append({"exchange": exchange, "transfer_ns": transfer, "late_rank": late})
    return found


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of traces, before they are read."""

    options: Options = Options()
    window: str | None = None
    """``START:END`` as :func:`parse_window` takes it; it goes into the options of each trace."""
    rules: tuple[ClassRule, ...] = ()
    """Class rules that go before the built-in ones."""
    analyzers: tuple[Analyzer, ...] = ANALYZERS


def analyze(
    paths: Sequence[Path],
    request: Request = Request(),
    progress: Progress = silent,
    *,
    use_cache: bool = True,
) -> tuple[Analysis, ...]:
    """Answer `request` for the traces at `paths`, several as the ranks of one run.

    The answer to a question about large traces is kept in the cache folder, and found there when
    the same is asked again, unless `use_cache` is false.

    Raises
    ------
    TraceError, MissingError
        As :func:`open_trace`.
    UsageError
        The window is none, or the limit of the cache is no size.
    """
    if use_cache:
        cache.limit_bytes()  # said before the work, not after it
    exports = [find_export(path) for path in paths]
    beside = [told_beside(path) for path in paths]
    names = [analyzer.name for analyzer in request.analyzers]
    rules = (*request.rules, *settings.class_rules())
    missing = [left_out(path) for path in paths]
    question = repr((request.options, request.window, rules, names, beside, missing))
    kept = results.Kept(exports, question)
    found = kept.load() if use_cache else None
    if found is not None:
        return tuple(
            dataclasses.replace(
                each, trace=dataclasses.replace(each.trace, path=str(find_trace(path)))
            )
            for each, path in zip(found, paths, strict=True)
        )
    traces = [
        open_trace(path, request.rules, request.analyzers, progress, use_cache=use_cache)
        for path in paths
    ]
    options = [
        dataclasses.replace(
            request.options,
            ratio_limits=told.ratio_limits,
            perturbed=told.perturbed or request.options.perturbed,
            window_ns=None
            if request.window is None
            else parse_window(request.window, trace.origin_ns),
        )
        for trace, told in zip(traces, beside, strict=True)
    ]
    analyses = analyze_together(traces, options, request.analyzers, progress)
    if use_cache:
        kept.keep(analyses)
    return analyses


def parse_window(text: str, origin_ns: int) -> tuple[int, int]:
    """Return the window ``START:END`` in ns on the trace's clock.

    Each side is seconds from `origin_ns`, or ``…ns`` on the clock itself; an empty side is open.

    Raises
    ------
    UsageError
        The text is no such window, or ends before it starts.
    """
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        low = _time(start, origin_ns) if start else 0
        high = _time(end, origin_ns) if end else sys.maxsize
    except ValueError:
        msg = (
            f"{text!r} is no window: write START:END in seconds from the first operation, such as "
            "0.5:0.8, or in ns on the trace's clock, such as 1200000ns:1300000ns."
        )
        raise UsageError(msg) from None
    if high <= low:
        msg = f"the window {text!r} ends before it starts."
        raise UsageError(msg)
    return low, high


def _time(text: str, origin_ns: int) -> int:
    if text.endswith("ns"):
        time_ns = int(text.removesuffix("ns"))
    else:
        seconds = float(text)
        time_ns = origin_ns + round(seconds * NS_PER_S) if abs(seconds) < 1e9 else sys.maxsize
    if not abs(time_ns) < sys.maxsize:
        raise ValueError
    return time_ns


def ratio_limits(result: Mapping[str, Any]) -> RatioLimits:
    """Return the ratio limits that a benchmark's result states for its pairs."""
    return {
        (row["range"], row["a"], row["b"]): row["ratio_limit"]
        for row in result.get("expected", ())
        if row.get("kind", "pair") == "pair"
    }


def told_beside(path: Path) -> Options:
    """Return what the run folder `path` tells beside its trace; of anything else it is nothing.

    That is the ratio limits, and what the profiler changed.
    """
    return Options(ratio_limits=_run_limits(path), perturbed=_run_perturbed(path))


def _run_limits(path: Path) -> RatioLimits:
    """Return the largest overlap ratios that the schedule of a run allowed."""
    file = RunFolder(history.find_run(path)).traced
    if not file.is_file():
        return {}
    try:
        return ratio_limits(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        msg = f"{file} is no result of a benchmark: run the benchmark again."
        raise TraceError(msg) from None


def _run_perturbed(path: Path) -> Mapping[str, float]:
    """Return by how much the profiler changed the passes of a run, if it did.

    The folder of a rank is in that of the run, which may have the record of all.
    """
    folder = history.find_run(path)
    file = folder / history.RECORD
    if not file.is_file() and folder in rank_folders(folder.parent):
        file = folder.parent / history.RECORD
    try:
        record = json.loads(file.read_text("utf-8"))
        return {name: float(change) for name, change in (record.get("perturbed") or {}).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def judge(
    result: Mapping[str, Any], analyses: Sequence[Analysis], ranks: int | None = None
) -> Judgement:
    """Hold what a benchmark must show (``expected`` in its result) against what the trace shows.

    A row whose range, pair or class is absent, or whose verdict is inconclusive without being
    expected, cannot be judged; one that the benchmark declares not judged is met by anything, and
    one not observable by a range that lacks the pair. With several devices the worst one counts.
    Nothing can be judged where fewer than `ranks` recorded GPU work, by default as many as there
    are analyses: what the others did is not known.
    """
    judges: dict[str, Callable[..., JudgedPair | JudgedPeak | JudgedPingPong | JudgedHidden]] = {
        "pair": _judge_pair,
        "peak": _judge_peak,
        "links": _judge_links,
        "count": _judge_count,
        "ping-pong": _judge_ping_pong,
        "hidden": _judge_hidden,
    }
    rows = result.get("expected", ())
    judged = tuple(judges[row.get("kind", "pair")](row, analyses) for row in rows)
    if ranks is None:
        ranks = len(analyses)
    silent = ranks - sum(each.trace.operations > 0 for each in analyses)
    if ranks > 1 and silent > 0:
        reason = f"{silent} of {ranks} ranks recorded no GPU work"
        judged = tuple(dataclasses.replace(row, reason=reason, met=None) for row in judged)
    return Judgement(judged)


def _judge_pair(row: Mapping[str, Any], analyses: Sequence[Analysis]) -> JudgedPair:
    """Hold the verdict that a pair of classes must get against the one it got."""
    scopes = _scopes(row["range"], analyses)
    pairs = [pair for scope in scopes if (pair := scope.pair(row["a"], row["b"])) is not None]
    return _judge_verdicts(row, pairs, scopes)


def _judge_links(row: Mapping[str, Any], analyses: Sequence[Analysis]) -> JudgedPair:
    """Hold the verdict that the copies of two directions must get against the one they got."""
    entries = _entries(row["range"], analyses)
    wanted = {row["a"], row["b"]}
    pairs = [pair for entry in entries for pair in entry.link_pairs if {pair.a, pair.b} == wanted]
    return _judge_verdicts({"ratio_limit": 1.0, **row}, pairs, entries)


def _judge_verdicts(
    row: Mapping[str, Any], pairs: Sequence[PairFigures | LinkPair], found: Sequence[object]
) -> JudgedPair:
    """Hold the verdict in `row` against those of `pairs`, in what was `found` of the range."""
    wanted = row["verdict"]
    least_rho = row.get("least_rho")
    subject = (row["range"], row["a"], row["b"], wanted)
    if wanted == NOT_OBSERVABLE and found and not pairs:
        reason = "what a kernel transfers leaves no rows: compare the time with its bound"
        return JudgedPair(*subject, wanted, None, None, reason, True)
    if not pairs:
        reason = _absent("pair", found)
        return JudgedPair(*subject, None, row["ratio_limit"], None, reason, None, least_rho)

    def reached(pair: PairFigures | LinkPair) -> float | None:
        return pair.rho if isinstance(pair, PairFigures) else pair.overlap_ratio

    def shows(pair: PairFigures | LinkPair) -> bool:
        return pair.verdict == wanted and (reached(pair) or 0.0) >= (least_rho or 0.0)

    pair = min(pairs, key=shows)
    met: bool | None = shows(pair)
    if wanted == NOT_JUDGED:
        met = True
    elif not met and pair.verdict == "inconclusive":
        met = None
    return JudgedPair(
        *subject, pair.verdict, row["ratio_limit"], reached(pair), pair.reason, met, least_rho
    )


def _judge_peak(row: Mapping[str, Any], analyses: Sequence[Analysis]) -> JudgedPeak:
    """Hold how many operations of a class must run at once against how many did.

    Where none has to run, a range without any is as it must be.
    """
    scopes = _scopes(row["range"], analyses)
    least, most = row["least"], row["most"]
    peaks = [
        concurrency.peak
        for scope in scopes
        if (concurrency := scope.concurrency.classes.get(row["op_class"])) is not None
    ]
    subject = (row["range"], row["op_class"], least, most)
    if not peaks and scopes and not least:
        return JudgedPeak(*subject, 0, "none ran", True)
    if not peaks:
        return JudgedPeak(*subject, None, _absent("class", scopes), None)
    peak = min(peaks, key=lambda peak: least <= peak <= most)
    return JudgedPeak(*subject, peak, f"{peak} ran at once at the peak", least <= peak <= most)


def _judge_hidden(row: Mapping[str, Any], analyses: Sequence[Analysis]) -> JudgedHidden:
    """Hold what share of the transfers must be hidden against what was, on the worst rank."""
    scopes = _scopes(row["range"], analyses)
    least, most = row["least"], row["most"]
    ratios = [
        ratio
        for scope in scopes
        if scope.phases is not None and (ratio := scope.phases.hidden_ratio) is not None
    ]
    if not ratios:
        return JudgedHidden(row["range"], least, most, None, _absent("transfer", scopes), None)
    too_little = min(ratios) < least or most >= 1
    worst = min(ratios) if too_little else max(ratios)
    reason = f"of {len(ratios)} devices the one furthest off"
    return JudgedHidden(row["range"], least, most, worst, reason, least <= worst <= most)


def _judge_ping_pong(row: Mapping[str, Any], analyses: Sequence[Analysis]) -> JudgedPingPong:
    """Say whether copies go there and back, each after the one before."""
    op_class, copies = row["op_class"], row["copies"]
    words = {True: "a ping-pong", False: "not a ping-pong"}
    subject = (row["range"], op_class, copies, words[row["wanted"]])
    entries = _entries(row["range"], analyses)
    copying = [entry for entry in entries if op_class in entry.scope.classes]
    if not copying:
        return JudgedPingPong(*subject, None, _absent("class", entries), None)
    instances = max(entry.instances_total for entry in copying)
    count = sum(entry.scope.classes[op_class].count for entry in copying)
    peak = max(entry.scope.concurrency.classes[op_class].peak for entry in copying)
    links = [pair for entry in copying for pair in entry.link_pairs]
    turns = (copies - 1) * instances
    if count != copies * instances:
        fault = f"{counted(count, 'copy is', 'copies are')} there, not {copies * instances}"
    elif peak > 1:
        fault = f"{peak} copies of one GPU ran at once"
    elif any(pair.overlap_ns for pair in links):
        fault = f"{format_ratio(links[0].overlap_ratio)} of one direction runs under the other"
    elif any(pair.turns != turns for pair in links):
        fault = f"the direction changed {counted(links[0].turns, 'time')}, not {turns}"
    else:
        fault = ""
    reason = fault or f"{count} copies, each after the one before"
    return JudgedPingPong(*subject, words[not fault], reason, (not fault) == row["wanted"])


def _judge_count(row: Mapping[str, Any], analyses: Sequence[Analysis]) -> JudgedPeak:
    """Hold how many operations of a class each instance must have against how many it had."""
    least, most = row["least"], row["most"]
    entries = _entries(row["range"], analyses)
    counts = [
        figures.count / entry.instances
        for entry in entries
        if (figures := entry.scope.classes.get(row["op_class"])) is not None
    ]
    subject = (row["range"], row["op_class"], least, most)
    if not counts:
        return JudgedPeak(*subject, None, _absent("class", entries), None, "an instance")
    count = min(counts, key=lambda count: least <= count <= most)
    reason = f"{count:g} in each instance"
    return JudgedPeak(*subject, round(count), reason, least <= count <= most, "an instance")


def _entries(name: str, analyses: Sequence[Analysis]) -> list[RangeResult]:
    """Return what the traces have of the range `name`, one a (process, device)."""
    return [entry for each in analyses for entry in each.ranges_named(name)]


def _scopes(name: str, analyses: Sequence[Analysis]) -> list[Scope]:
    return [entry.scope for entry in _entries(name, analyses)]


def _absent(part: str, found: Sequence[object]) -> str:
    return f"the trace has no such {part if found else 'range'}"
