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
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gpuscope import api, story
from gpuscope.analysis import Options, chosen
from gpuscope.analyzers import ANALYZERS
from gpuscope.cases import Case
from gpuscope.errors import CannotJudgeError, UsageError
from gpuscope.model import codec
from gpuscope.model import trace as model
from gpuscope.model.classes import CLASSES, user_rules
from gpuscope.model.result import (
    Analysis,
    DeviceResult,
    Finding,
    PairFigures,
    RangeResult,
    Scope,
)
from gpuscope.model.tables import Operations
from gpuscope.scopes import matches
from gpuscope.story import Explanation
from gpuscope.units import format_ns

if TYPE_CHECKING:
    import plotly.graph_objects as go

Entry = DeviceResult | RangeResult

_COMPLETE = ("details", "schedule")
"""Analyzers that give a scope all its figures, with those whose scopes they complete."""
_DEVICE = "(whole trace)"
_PLACE = ["range", "process", "device"]


def load(path: str | os.PathLike[str], *, classes: Iterable[str] = ()) -> Trace:
    """Read a trace: an SQLite export, a ``.nsys-rep`` report or the folder of a run.

    Parameters
    ----------
    path
        The file, which is opened read only, or the folder.
    classes
        Rules ``CLASS=REGEX`` that put kernels into classes, such as ``comm=halo_.*``.

    Raises
    ------
    TraceError
        There is no such file, or it is no trace, or damaged beyond reading.
    MissingError
        A report must be exported and no Nsight Systems is there, or only an older one.
    UsageError
        A rule is none.
    """
    place = Path(path)
    return Trace(api.open_trace(place, user_rules(classes)), api.run_limits(place))


class Trace:
    """A trace that was read; figures are computed when they are asked for."""

    def __init__(
        self, raw: model.Trace, ratio_limits: Mapping[tuple[str, str, str], float | None]
    ) -> None:
        self.raw = raw
        """The tables as they were read: frozen columns of NumPy arrays."""
        self._limits = ratio_limits

    def __repr__(self) -> str:
        operations = self._operations
        gpus = len(np.unique(operations.device))
        return (
            f"<Trace of {Path(self.raw.path).name}: {len(operations)} operations on {gpus} "
            f"GPU{'s' * (gpus != 1)} in {format_ns(self.raw.duration_ns)}>"
        )

    @property
    def _operations(self) -> Operations:
        return self.raw.operations if self.raw.operations is not None else Operations.empty()

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
        category: str | None = None,
        attribute: str = "thread",
    ) -> Overlap:
        """Measure what ran at the same time.

        Parameters
        ----------
        range
            Name or glob of NVTX ranges; without it (and `path`) the whole trace, GPU by GPU.
        path
            Ranges by their nesting, such as ``step/forward``, globs allowed.
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
        for name, value in (("range", range), ("path", path), ("window", window)):
            _check_text(name, value)
        bounds = None if window is None else api.parse_window(window, self.raw.origin_ns)
        options = Options(
            ranges=() if asked is None else (asked,),
            by_path=path is not None,
            domains=() if domain is None else (domain,),
            categories=() if category is None else (category,),
            window_ns=bounds,
            attribute=attribute,
            ratio_limits=self._limits,
        )
        return Overlap(self, options)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The causes of lost overlap, those that would save most first."""
        names = {each.name for each in ANALYZERS} - set(("overlap", "ranges", "links", *_COMPLETE))
        return self._analysis(tuple(names), Options()).findings

    def _range_names(self) -> set[str]:
        ranges = self.raw.ranges
        return (
            {self.raw.strings[n] for n in np.unique(ranges.name)} if ranges is not None else set()
        )

    def causes(self, range: str | None = None) -> pd.DataFrame:
        """Return the findings as rows, those of one range (or glob) if named.

        Columns: id, severity, range, device, claim, advice, saving_ns (null where unknown).

        Raises
        ------
        CannotJudgeError
            The trace has no GPU work, or no range of this name.
        """
        _check_text("range", range)
        if not self.raw.operations:
            msg = f"{self.raw.path} holds no GPU work: there is nothing whose causes could be told."
            raise CannotJudgeError(msg)
        if range is not None and not any(matches(name, [range]) for name in self._range_names()):
            msg = f"no range {range!r} is in {self.raw.path}: `.ranges` lists those that are."
            raise CannotJudgeError(msg)
        columns = ["id", "severity", "range", "device", "claim", "advice", "saving_ns"]
        rows = [
            {column: getattr(finding, column) for column in columns}
            for finding in self.findings
            if range is None or matches(finding.range or "", [range])
        ]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.astype({"saving_ns": "Int64", "device": "Int64"})

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
        options = dataclasses.replace(options, ratio_limits=self._limits)
        return api.analyze_together([self.raw], [options], chosen(ANALYZERS, names)).traces[0]


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
        if raw.operations is None or not len(raw.operations):
            return f"{raw.path} holds no GPU work: record with CUDA tracing (-t cuda)."
        if not options.ranges:
            return f"no operation of {raw.path} lies in the window."
        return (
            f"no range {options.ranges[0]!r} in {raw.path} launched GPU work: `trace.ranges` lists "
            "those that did; with attribute='process' the launches of other threads count too."
        )

    def __repr__(self) -> str:
        listed = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
        return f"<Overlap of {listed}: {len(self.entries)} scopes>"

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
    return entry.path or entry.name if isinstance(entry, RangeResult) else _DEVICE


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
