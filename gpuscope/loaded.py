"""What `gpuscope.load` returns: a trace for scripts and notebooks, and what it answers.

Nothing here prints. Rows are pandas DataFrames, times integer nanoseconds, ratios run from 0 to 1.

>>> import gpuscope
>>> from gpuscope import samples
>>> trace = gpuscope.load(samples.path("streams"))
>>> trace
<Trace of streams.sqlite: 75 operations on 1 GPU in 84.1 ms>
>>> int(trace.ranges.loc["streamed", "instances"])
3
>>> result = trace.overlap(range="streamed")
>>> float(result.matrix.loc["h2d", "kernel"].round(3))
0.75
>>> result.verdict("h2d", "kernel")
'overlapped'
>>> int(result.instances["span_ns"].max())
7361943
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas as pd

from gpuscope import api, communication, story
from gpuscope.analysis import Options, chosen
from gpuscope.analyzers import ANALYZERS
from gpuscope.cases import Case
from gpuscope.errors import CannotJudgeError, UsageError
from gpuscope.model import codec
from gpuscope.model import trace as model
from gpuscope.model.classes import CLASSES, user_rules
from gpuscope.model.result import (
    Analysis,
    Communication,
    DeviceResult,
    Finding,
    Messages,
    MpiCallFigures,
    PairFigures,
    RangeResult,
    Scope,
)
from gpuscope.model.tables import Operations
from gpuscope.report.ranks import joint_rows
from gpuscope.report.rows import WHOLE_TRACE
from gpuscope.scopes import did_you_mean, matches
from gpuscope.story import Explanation
from gpuscope.units import counted, format_ns

if TYPE_CHECKING:
    import plotly.graph_objects as go

Entry = DeviceResult | RangeResult

_COMPLETE = ("details", "schedule")
"""Analyzers that give a scope all its figures, with those whose scopes they complete."""
_PLACE = ["range", "process", "device"]


def load(path: str | os.PathLike[str], *others: object, classes: Iterable[str] = ()) -> Trace:
    """Read a trace: an SQLite export, a ``.nsys-rep`` report or the folder of a run.

    Parameters
    ----------
    path
        The file, which is opened read only, or the folder.
    others
        Nothing: traces of several ranks are for :func:`load_ranks`.
    classes
        Rules ``CLASS=REGEX`` that put kernels into classes, such as ``comm=halo_.*``.

    Raises
    ------
    TraceError
        There is no such file, or it is no trace, or damaged beyond reading.
    MissingError
        A report must be exported and no Nsight Systems is there, or only an older one.
    UsageError
        A rule is none, or it is not one path that is given.
    """
    if others:
        raise UsageError(
            "load takes one trace: those of the ranks of a run are for load_ranks(*paths)."
        )
    place = _path(path)
    return Trace(api.open_trace(place, user_rules(classes)), api.told_beside(place))


def load_ranks(*paths: str | os.PathLike[str], classes: Iterable[str] = ()) -> Ranks:
    """Read the traces of the ranks of one run together: what one waited for, the others tell.

    Parameters
    ----------
    paths
        The folder of a run of several ranks, or a trace for each rank, in any form that
        :func:`load` takes.
    classes
        Rules ``CLASS=REGEX`` that put kernels into classes.

    Raises
    ------
    TraceError, MissingError, UsageError
        As :func:`load`; also where no path is named, or a list of them in place of each.

    Examples
    --------
    >>> import gpuscope
    >>> from gpuscope import samples
    >>> ranks = gpuscope.load_ranks(*(samples.path(f"jacobi_nccl_r{rank}") for rank in (0, 1)))
    >>> ranks
    <Ranks of 2 traces: rank 0, rank 1>
    >>> ranks.messages["wait_ns"].to_list()
    [2813945, 4800]
    """
    if not paths:
        raise UsageError("name the folder of a run, or a trace for each of its ranks.")
    places = api.of_ranks([_path(path) for path in paths])
    rules = user_rules(classes)
    raw = [api.open_trace(place, rules) for place in places]
    return Ranks(
        [
            Trace(each, api.told_beside(place), known)
            for each, place, known in zip(raw, places, api.exchanged(raw), strict=True)
        ]
    )


def _path(given: object) -> Path:
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise UsageError(
        f"a trace is named by its path, not by {type(given).__name__}: give load one path, and "
        "those of the ranks of a run to load_ranks(*paths), each by itself."
    )


class Trace:
    """A trace that was read; figures are computed when they are asked for."""

    def __init__(
        self,
        raw: model.Trace,
        beside: Options,
        messages: Mapping[str, Any] | None = None,
    ) -> None:
        """`beside` says what the run told of `raw`, `messages` what is known of these.

        Both are options; by default the messages are known from `raw` alone.
        """
        self.raw = raw
        """The tables as they were read: frozen columns of NumPy arrays."""
        self._beside = beside
        self._messages = api.exchanged([raw])[0] if messages is None else messages

    def __repr__(self) -> str:
        operations = self._operations
        gpus = len(np.unique(operations.device))
        return (
            f"<Trace of {Path(self.raw.path).name}: {counted(len(operations), 'operation')} on "
            f"{counted(gpus, 'GPU')} in {format_ns(self.raw.duration_ns)}>"
        )

    @property
    def _operations(self) -> Operations:
        return self.raw.operations or Operations.empty()

    # Rows

    @cached_property
    def operations(self) -> pd.DataFrame:
        """Every GPU activity, a row each, in the order of their starts.

        Columns: start_ns, end_ns, duration_ns, op_class, name, process (pid), device, stream,
        size_bytes.
        """
        ops, raw = self._operations, self.raw
        devices = [(raw.processes[each.process].pid, each.number) for each in raw.devices]
        pid, device = np.array(devices or [(0, 0)], np.int64)[ops.device].T
        streams = np.array([*(each.number for each in raw.streams), -1], np.int64)
        return pd.DataFrame(
            {
                "start_ns": ops.start_ns,
                "end_ns": ops.end_ns,
                "duration_ns": ops.end_ns - ops.start_ns,
                "op_class": pd.Categorical.from_codes(
                    ops.op_class.astype(np.int64), pd.Index(CLASSES)
                ),
                "name": np.array(raw.strings or ("",), np.object_)[ops.name],
                "process": pid,
                "device": device,
                "stream": streams[ops.stream],
                "size_bytes": ops.size_bytes,
            }
        )

    @property
    def kernels(self) -> pd.DataFrame:
        """The compute and communication kernels among the operations."""
        return self._of_classes("kernel", "comm", "fused")

    @property
    def copies(self) -> pd.DataFrame:
        """The copies among the operations."""
        return self._of_classes("h2d", "d2h", "d2d", "p2p", "h2h")

    def _of_classes(self, *names: str) -> pd.DataFrame:
        return self.operations[self.operations["op_class"].isin(names)]

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """The NVTX ranges that launched GPU work, by name: how often, and their busy times."""
        rows = [
            {
                "range": entry.name,
                "process": entry.process,
                "device": entry.device,
                "instances": entry.instances,
                "span_ns": entry.scope.span_ns,
                "busy_ns": entry.scope.busy_ns,
                "bound_ns": entry.scope.bound_ns,
                "overlap_efficiency": entry.scope.overlap_efficiency,
            }
            for entry in self._analysis(("ranges",), Options()).ranges
        ]
        columns = [*_PLACE, "instances", "span_ns", "busy_ns", "bound_ns", "overlap_efficiency"]
        return pd.DataFrame(rows, columns=columns).set_index("range")

    # Answers

    def overlap(
        self,
        range: str | None = None,
        *,
        path: str | None = None,
        window: str | None = None,
        domain: str | None = None,
        category: str | int | None = None,
        attribute: str = "thread",
    ) -> Overlap:
        """Measure what ran at the same time.

        Parameters
        ----------
        range
            Name or glob of NVTX ranges; without it (and `path`) the whole trace, GPU by GPU.
        path
            Ranges by their nesting, such as ``step/forward``; the ``*`` of a glob crosses ``/``.
        window
            ``START:END`` in seconds from the first operation, or in ns (``…ns``); not for ranges.
        domain, category
            NVTX domain of the ranges; their category, by number or name.
        attribute
            ``thread`` or ``process``: whose launches inside a range belong to it.

        Raises
        ------
        CannotJudgeError
            The trace holds no GPU work, or none in such a range.
        UsageError
            The arguments exclude each other, or the window is none.

        Examples
        --------
        >>> import gpuscope
        >>> from gpuscope import samples
        >>> trace = gpuscope.load(samples.path("streams"))
        >>> trace.overlap(range="s*").names
        ('sequential', 'streamed')
        >>> int(trace.overlap().scope.busy_ns)
        61403597
        """
        if attribute not in ("thread", "process"):
            raise UsageError(f"attribute is 'thread' or 'process', not {attribute!r}.")
        if range is not None and path is not None:
            raise UsageError("name a range or a path, not both: a path names its ranges already.")
        asked = path if path is not None else range
        if asked is None and (domain is not None or category is not None):
            asked = "*"
        if asked is not None and window is not None:
            raise UsageError("a window cuts the whole trace: leave out the range, or the window.")
        category = str(category) if isinstance(category, int) else category
        texts = {"range": range, "path": path, "window": window}
        for name, value in {**texts, "domain": domain, "category": category}.items():
            _check_text(name, value)
        bounds = None if window is None else api.parse_window(window, self.raw.origin_ns)
        options = Options(
            ranges=() if asked is None else (asked,),
            by_path=path is not None,
            domains=() if domain is None else (domain,),
            categories=() if category is None else (category,),
            window_ns=bounds,
            attribute=attribute,
        )
        return Overlap(self, options)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The causes of lost overlap, those that would save most first."""
        names = {each.name for each in ANALYZERS} - set(("overlap", "ranges", "links", *_COMPLETE))
        return self._analysis(tuple(names), Options()).findings

    def causes(self, range: str | None = None) -> pd.DataFrame:
        """Return the findings as rows, those of one range (or glob) if named.

        Columns: id, severity, range, device, claim, advice, saving_ns (null where unknown), and
        together_ns: the most that it saves with the other causes of its range, where their savings
        do not add up (else null).

        Raises
        ------
        CannotJudgeError
            The trace has no GPU work, or no range of this name.
        """
        _check_text("range", range)
        if not self.raw.operations:
            msg = f"{self.raw.path} holds no GPU work: there is nothing whose causes could be told."
            raise CannotJudgeError(msg)
        if range is not None and not any(matches(name, [range]) for name in self.raw.range_names):
            hint = did_you_mean(self.raw, range)
            msg = (
                f"no range {range!r} is in {self.raw.path}: `.ranges` lists those that are"
                f"{hint or '.'}"
            )
            raise CannotJudgeError(msg)
        columns = ["id", "severity", "range", "device", "claim", "advice", "saving_ns"]
        rows = [
            {
                **{column: getattr(finding, column) for column in columns},
                "together_ns": finding.evidence.get("together", {}).get("at_most_ns"),
            }
            for finding in self.findings
            if range is None or matches(finding.range or "", [range])
        ]
        frame = pd.DataFrame(rows, columns=[*columns, "together_ns"])
        return frame.astype({"saving_ns": "Int64", "together_ns": "Int64", "device": "Int64"})

    def explain(self, range: str | None = None, *, operation: int | None = None) -> Explanation:
        """Tell what the operations of ranges, or one operation, waited for before they started.

        Parameters
        ----------
        range
            Name or glob of outermost ranges; without it (and `operation`) all of them.
        operation
            Number of one operation: its row in `operations`.

        Raises
        ------
        CannotJudgeError
            There is no such range with GPU work, or no such operation.
        UsageError
            Both are named, or the operation is no whole number.
        """
        _check_text("range", range)
        if range is not None and operation is not None:
            raise UsageError("name a range or an operation, not both.")
        if operation is not None and not isinstance(operation, int | np.integer):
            raise UsageError(f"{operation!r} is no operation: give its row in `operations`.")
        case = Case.of(self.raw, Options(ranges=() if range is None else (range,)))
        if operation is not None:
            if not 0 <= operation < len(case.ops):
                raise CannotJudgeError(
                    f"there is no operation {operation} in {self.raw.path}: it has "
                    f"{len(case.ops)}, numbered from 0."
                )
            return Explanation(self.raw.path, (story.tell_operation(case, operation),), (), 0)
        regions = [each for each in case.levels[0] if each.name is not None or range is None]
        if not regions:
            what = "" if range is None else f"no range {range!r} with "
            raise CannotJudgeError(f"{what or 'no '}GPU work is in {self.raw.path}.")
        told = tuple(story.tell_range(case, region) for region in regions)
        return Explanation(self.raw.path, (), told, 0)

    def figure(self, theme: str = "light") -> go.Figure:
        """Draw the overlap matrix of the whole trace, of the first GPU if there are several."""
        return self.overlap().figure(theme)

    def _analysis(self, names: Sequence[str], options: Options) -> Analysis:
        options = dataclasses.replace(
            options,
            ratio_limits=self._beside.ratio_limits,
            perturbed=self._beside.perturbed,
            **self._messages,
        )
        return api.analyze_trace(self.raw, options, chosen(ANALYZERS, names))


def _check_text(name: str, value: object) -> None:
    """Refuse what is no text where one is wanted.

    Raises
    ------
    UsageError
        It is none.
    """
    if value is None or isinstance(value, str):
        return
    how = {
        "window": "write START:END in seconds from the first operation, such as '0.5:0.8'",
        "path": "one path, or a glob such as 'step/*'",
    }.get(name, "one name, or a glob such as 'step*'")
    raise UsageError(f"{name} is a text, not {value!r}: {how}.")


class Ranks(Sequence[Trace]):
    """The traces of one run's ranks, in the order in which they were named.

    Each answers as one that was loaded alone, but knows from the others how long its messages
    waited.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = tuple(traces)
        self.names = tuple(
            f"trace {place}" if number is None else f"rank {number}"
            for place, number in enumerate(map(_rank_number, self._traces))
        )
        """What the ranks are called: by their numbers, or places where they do not tell them."""

    def __repr__(self) -> str:
        return f"<Ranks of {counted(len(self), 'trace')}: {', '.join(self.names)}>"

    def __len__(self) -> int:
        return len(self._traces)

    @overload
    def __getitem__(self, place: int) -> Trace: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Trace, ...]: ...
    def __getitem__(self, place: int | slice) -> Trace | tuple[Trace, ...]:
        return self._traces[place]

    @cached_property
    def _communication(self) -> list[Communication]:
        found = [each._analysis(("communication",), Options()) for each in self]
        return [entry for analysis in found for entry in analysis.communication]

    @cached_property
    def messages(self) -> pd.DataFrame:
        """The messages of each rank by kind, a row each.

        Columns: rank, process, device, communicator, kernel, operation, size_bytes, peer, count,
        and in ns work, exposed and hidden (under a kernel), transfer and wait with their exposed
        parts; null where nothing is known.
        """
        rows = [
            {
                "rank": entry.rank,
                "process": entry.process,
                "device": entry.device,
                **{name: getattr(kind, name) for name in _MESSAGE_COLUMNS},
                "hidden_ns": kind.work_ns - kind.exposed_ns,
            }
            for entry in self._communication
            for kind in entry.messages
        ]
        columns = ["rank", "process", "device", *_MESSAGE_COLUMNS, "hidden_ns"]
        numbers = [name for name in columns if name.endswith(("_ns", "_bytes"))]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.astype(dict.fromkeys(["rank", "peer", *numbers], "Int64"))

    @cached_property
    def mpi(self) -> pd.DataFrame:
        """The MPI calls of each rank by name, against the work of its GPU, a row each.

        Columns: rank, process, device, name, count, size_bytes, work_ns on the host, and how much
        of that the GPU was busy and idle; null where the process used none.
        """
        rows = [
            {
                "rank": entry.rank,
                "process": entry.process,
                "device": entry.device,
                **dataclasses.asdict(each),
            }
            for entry in self._communication
            for each in entry.mpi
        ]
        own = [field.name for field in dataclasses.fields(MpiCallFigures)]
        frame = pd.DataFrame(rows, columns=["rank", "process", "device", *own])
        unknown = ("rank", "device", "size_bytes", "gpu_busy_ns", "gpu_idle_ns")
        return frame.astype(dict.fromkeys(unknown, "Int64"))

    @cached_property
    def clocks(self) -> pd.DataFrame:
        """How the clock of each rank stands to the first one's, in ns; see `docs/figures.md`."""
        rows = [
            {"rank": entry.rank, "device": entry.device, **dataclasses.asdict(entry.clock)}
            for entry in self._communication
            if entry.clock is not None
        ]
        columns = ["rank", "device", "offset_ns", "residual_ns", "worst_ns", "matched"]
        return pd.DataFrame(rows, columns=columns).astype({"rank": "Int64", "device": "Int64"})

    def verdicts(self, range: str | None = None) -> pd.DataFrame:
        """Return the verdict of every pair of classes on each rank, and the joint one.

        Rows are (range, a, b), of all ranges or those of a name or glob. Jointly a pair is what it
        is on the worst rank that has it; one without any GPU work is inconclusive. Of traces
        recorded too far apart to be of one run the joint one is None.

        Raises
        ------
        CannotJudgeError
            No rank launched GPU work in such a range.
        """
        _check_text("range", range)
        options = Options(ranges=() if range is None else (range,))
        names = ("overlap", "ranges") if range is None else ("ranges",)
        analyses = [each._analysis(names, options) for each in self]
        if range is not None and not any(analysis.ranges for analysis in analyses):
            msg = (
                f"no rank launched GPU work in a range {range!r}: `.ranges` of each lists its own."
            )
            raise CannotJudgeError(msg)
        found = joint_rows(analyses)
        index = pd.MultiIndex.from_tuples(
            [(row.range, row.a, row.b) for row in found], names=["range", "a", "b"]
        )
        apart = communication.apart([each.raw for each in self])
        verdicts = [(None if apart else row.joint, *row.verdicts) for row in found]
        return pd.DataFrame(verdicts, index=index, columns=["joint", *self.names])

    def causes(self, range: str | None = None) -> pd.DataFrame:
        """Return the findings of all ranks as rows, the name of the rank in the column rank."""
        frames = [
            each.causes(range).assign(rank=name)
            for each, name in zip(self, self.names, strict=True)
        ]
        return pd.concat(frames, ignore_index=True)


_MESSAGE_COLUMNS = tuple(
    field.name for field in dataclasses.fields(Messages) if field.name != "late"
)


def _rank_number(trace: Trace) -> int | None:
    """Return the number of the rank whose trace it is; None where none or several are in it."""
    numbers = {process.rank for process in trace.raw.processes}
    return numbers.pop() if len(numbers) == 1 else None


class Overlap:
    """What ran at the same time in ranges, or on whole GPUs.

    One entry a (range, process, GPU): figures are never summed over GPUs. Where there is one entry,
    tables have its classes as rows; where there are several, (range, process, device) stand before.
    """

    def __init__(self, trace: Trace, options: Options) -> None:
        self._trace, self._options = trace, options
        self.entries = self._measured(_COMPLETE, options)
        """The results one by one: dataclasses as in the JSON, with a `scope` each."""
        if not self.entries:
            raise CannotJudgeError(self._absent())

    def _measured(self, names: Sequence[str], options: Options) -> tuple[Entry, ...]:
        analysis = self._trace._analysis(names, options)
        whole = not (options.ranges or options.domains or options.categories)
        return analysis.devices if whole else analysis.ranges

    def _absent(self) -> str:
        raw, options = self._trace.raw, self._options
        if not raw.operations:
            return f"{raw.path} holds no GPU work: record with CUDA tracing (-t cuda)."
        if not options.ranges:
            return f"no operation of {raw.path} lies in the window."
        named = "" if options.ranges == ("*",) else f" {options.ranges[0]!r}"
        within = " and ".join(
            f"{what} {names[0]!r}"
            for what, names in (("domain", options.domains), ("category", options.categories))
            if names
        )
        within = f" of the {within}" if within else ""
        hint = did_you_mean(raw, options.ranges[0]) if named and not within else ""
        return (
            f"no range{named}{within} in {raw.path} launched GPU work: `trace.ranges` lists "
            "those that did; with attribute='process' the launches of other threads count too"
            f"{hint or '.'}"
        )

    def __repr__(self) -> str:
        listed = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
        return f"<Overlap of {listed}: {counted(len(self.entries), 'scope')}>"

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        """The ranges (or paths) that were measured, in order."""
        return tuple(dict.fromkeys(_name(entry) for entry in self.entries))

    @property
    def scope(self) -> Scope:
        """All figures of the only entry, as in the JSON.

        Raises
        ------
        UsageError
            There are several entries.
        """
        if len(self.entries) > 1:
            raise UsageError(
                f"there are {len(self.entries)} scopes, one a range and GPU: "
                "take them from `entries`, or ask for one range."
            )
        return self.entries[0].scope

    @cached_property
    def matrix(self) -> pd.DataFrame:
        """Overlap of every two classes as a share of the smaller one's busy time; NaN: none.

        >>> import gpuscope
        >>> from gpuscope import samples
        >>> trace = gpuscope.load(samples.path("streams"))
        >>> print(trace.overlap("streamed").matrix.round(2))
                kernel   h2d   d2h
        kernel     NaN  0.75  0.69
        h2d       0.75   NaN  0.67
        d2h       0.69  0.67   NaN
        """
        return self._table(lambda scope: _square(scope, lambda pair: pair.overlap_ratio))

    @cached_property
    def times(self) -> pd.DataFrame:
        """Overlap of every two classes in ns; on the diagonal how long each was busy."""

        def table(scope: Scope) -> pd.DataFrame:
            frame = _square(scope, lambda pair: pair.overlap_ns)
            for name, figures in scope.classes.items():
                frame.loc[name, name] = figures.busy_ns
            return frame.astype("Int64")

        return self._table(table)

    @cached_property
    def classes(self) -> pd.DataFrame:
        """Count, work, busy and exposed time, bytes and streams of every class."""
        return self._table(
            lambda scope: pd.DataFrame.from_dict(
                {name: dataclasses.asdict(each) for name, each in scope.classes.items()}, "index"
            )
        )

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Every pair of classes with its figures, its verdict and the reason."""
        return pd.DataFrame(
            {**_place(entry), **dataclasses.asdict(pair)}
            for entry in self.entries
            for pair in entry.scope.pairs
        )

    @cached_property
    def instances(self) -> pd.DataFrame:
        """Every instance by itself: its times, and the overlap of every pair (``h2d&kernel_ns``).

        Of whole GPUs there is one instance each. Times are on the trace's clock.
        """
        options = dataclasses.replace(self._options, instances=True)
        if not options.ranges:
            rows = [_instance(entry, 0, None, entry.scope) for entry in self.entries]
        else:
            measured = self._measured(("ranges",), options)
            rows = [
                _instance(entry, each.index, each.start_ns, each.scope)
                for entry in measured
                if isinstance(entry, RangeResult)
                for each in entry.per_instance or ()
            ]
        return pd.DataFrame(rows)

    def verdict(self, a: str, b: str) -> str:
        """Return the verdict on two classes, such as ``overlapped``; see `pairs` for the reason.

        Raises
        ------
        UsageError
            There are several entries.
        CannotJudgeError
            One of the classes is absent.
        """
        pair = self.scope.pair(a, b)
        if pair is None:
            raise CannotJudgeError(
                f"{self.names[0]} has no pair {a} and {b}: its classes are "
                f"{', '.join(self.scope.classes)}."
            )
        return pair.verdict

    def figure(self, theme: str = "light") -> go.Figure:
        """Draw the overlap matrix of the first entry, ``light`` or ``dark``."""
        from gpuscope.figures import overlap, palette

        together = overlap.Together.of_scope(self.entries[0].scope)
        return overlap.matrix_figure(together, palette.theme(theme))

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the entries as the JSON has them."""
        found: list[dict[str, Any]] = codec.to_jsonable(self.entries)
        return found

    def _table(self, table: Callable[[Scope], pd.DataFrame]) -> pd.DataFrame:
        """Return one entry's table, or those of all under (range, process, device)."""
        if len(self.entries) == 1:
            return table(self.entries[0].scope)
        keys = [tuple(_place(entry).values()) for entry in self.entries]
        return pd.concat(
            [table(entry.scope) for entry in self.entries], keys=keys, names=[*_PLACE, "class"]
        )


def _name(entry: Entry) -> str:
    return entry.path or entry.name if isinstance(entry, RangeResult) else WHOLE_TRACE


def _place(entry: Entry) -> dict[str, Any]:
    return {"range": _name(entry), "process": entry.process, "device": entry.device}


def _square(scope: Scope, value: Callable[[PairFigures], float | None]) -> pd.DataFrame:
    names = list(scope.classes)
    frame = pd.DataFrame(np.nan, index=names, columns=names)
    for pair in scope.pairs:
        found = value(pair)
        if found is not None:
            frame.loc[pair.a, pair.b] = frame.loc[pair.b, pair.a] = found
    return frame


def _instance(entry: Entry, index: int, start_ns: int | None, scope: Scope) -> dict[str, Any]:
    return {
        **_place(entry),
        "index": index,
        "start_ns": start_ns,
        "span_ns": scope.span_ns,
        "busy_ns": scope.busy_ns,
        "idle_ns": scope.idle_ns,
        "serial_ns": scope.serial_ns,
        "bound_ns": scope.bound_ns,
        "overlap_efficiency": scope.overlap_efficiency,
        **dict(chain.from_iterable(_pair_columns(pair) for pair in scope.pairs)),
    }


def _pair_columns(pair: PairFigures) -> list[tuple[str, Any]]:
    name = f"{pair.a}&{pair.b}"
    return [(f"{name}_ns", pair.overlap_ns), (f"{name}_ratio", pair.overlap_ratio)]
