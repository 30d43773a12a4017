"""What the page knows: the trace, its analysis, and the view a person has chosen."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpuscope import api
from gpuscope.analysis import Options, RatioLimits
from gpuscope.analyzers import overlap
from gpuscope.figures.timeline import Timeline
from gpuscope.model.result import Analysis, DeviceResult, Finding, RangeResult, Scope
from gpuscope.model.tables import Ranges
from gpuscope.model.trace import Trace
from gpuscope.scopes import nesting

MAX_CARDS = 8
"""Ranges that get a card of their own; all are in the range picker."""
FEW_INNER = 4
"""A single outermost range is joined on the cards by the ranges in it when these are so few."""
ZOOM_FACTOR = 0.5
PAN_SHARE = 0.3
MIN_VIEW_NS = 20
_FIT_MARGIN = 0.02
FRAME_PREFIX = "gs:"
"""What the names of the ranges begin with that frame a benchmark's passes."""
_LIBRARY_DOMAINS = {"NCCL", "MPI"}
WHOLE = -1
"""Number of the whole trace among the ranges."""
_LONGEST_NAME = 200
"""A longer name goes into the address as its number."""


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at: a stretch of time in ns on the trace's clock, and a picked range."""

    low_ns: int
    high_ns: int
    range_number: int = WHOLE
    """Position in :meth:`Session.range_names`; names can be too long to send about."""

    def zoomed(self, factor: float) -> View:
        """Return the view scaled around its middle."""
        middle = (self.low_ns + self.high_ns) // 2
        half = max(MIN_VIEW_NS, round((self.high_ns - self.low_ns) * factor)) // 2
        return replace(self, low_ns=middle - half, high_ns=middle + half)

    def moved(self, share: float) -> View:
        """Return the view moved by a share of its width."""
        step = round((self.high_ns - self.low_ns) * share)
        return replace(self, low_ns=self.low_ns + step, high_ns=self.high_ns + step)

    def to_json(self) -> dict[str, Any]:
        """Return the view for the page's store; times as text, beyond the page's integers."""
        return {"low": str(self.low_ns), "high": str(self.high_ns), "range": self.range_number}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> View:
        """Read what :meth:`to_json` wrote."""
        return cls(int(data["low"]), int(data["high"]), int(data["range"]))


class Session:
    """One trace on the page; everything the callbacks ask for."""

    def __init__(self, trace: Trace, limits: RatioLimits) -> None:
        self.trace = trace
        self.limits = limits
        self.timeline = Timeline(trace)
        self._device = {
            (trace.processes[device.process].pid, device.number): index
            for index, device in enumerate(trace.devices)
        }
        self.analysis: Analysis = api.analyze_trace(trace, Options(ratio_limits=limits))
        self.ranges = self._ranked_ranges()
        self.range_names = self._names()
        """Names for the range picker, each once, the best ones first."""
        self._lock = threading.Lock()
        self._window = lru_cache(maxsize=64)(self._measure_window)

    def _ranked_ranges(self) -> tuple[RangeResult, ...]:
        """Order the ranges with pairs, the ones that a person comes for first."""
        trace = self.trace
        self._rank: dict[str, tuple[bool, int, int]] = {}
        if trace.ranges is None:
            return ()
        judged = {name for name, _, _ in self.limits}
        for number, depth, library in _names_of(trace.ranges, trace.strings):
            name = trace.strings[number]
            # A benchmark's own frame and the calls of libraries are seldom the question.
            kind = 2 if library else int(name.startswith(FRAME_PREFIX))
            self._rank[name] = (name not in judged, kind, depth)
        paired = [entry for entry in self.analysis.ranges if entry.scope.pairs or entry.link_pairs]
        return tuple(sorted(paired, key=lambda entry: self._rank[entry.name]))

    def carded(self) -> tuple[RangeResult, ...]:
        """Return the ranges that get a card: the best ones and their peers.

        What these hold stays out, unless there is but one and it holds few.
        """
        if not self.ranges:
            return ()
        best = self._rank[self.ranges[0].name]
        peers = [entry for entry in self.ranges if self._rank[entry.name] <= best]
        inner = [
            entry
            for entry in self.ranges
            if best < self._rank[entry.name] and self._rank[entry.name][:2] == best[:2]
        ]
        unjudged, _, _ = best
        single = len({entry.name for entry in peers}) == 1
        if unjudged and single and len({entry.name for entry in inner}) <= FEW_INNER:
            peers += inner
        return tuple(peers[:MAX_CARDS])

    def device_of(self, entry: DeviceResult | RangeResult) -> int:
        """Return the device that figures are about, as an index into Trace.devices."""
        return self._device[entry.process, entry.device]

    def _names(self) -> tuple[str, ...]:
        ranked = [entry.name for entry in self.ranges]
        rest = [entry.name for entry in self.analysis.ranges]
        return tuple(dict.fromkeys([*ranked, *rest]))

    def fit(self, range_number: int = WHOLE) -> View:
        """Return the view that shows the whole trace, or all instances of a range."""
        window = None
        if 0 <= range_number < len(self.range_names):
            window = self.timeline.range_window(self.range_names[range_number])
        low, high = window or (self.timeline.low_ns, self.timeline.high_ns)
        margin = max(1, round((high - low) * _FIT_MARGIN))
        return View(low - margin, high + margin, range_number if window else WHOLE)

    def clamp(self, view: View) -> View:
        """Keep a view within reach of the trace, and its width above MIN_VIEW_NS."""
        widest = self.fit()
        full = widest.high_ns - widest.low_ns
        width = min(max(view.high_ns - view.low_ns, MIN_VIEW_NS), 2 * full)
        low = min(max(view.low_ns, widest.low_ns - width // 2), widest.high_ns - width // 2)
        return replace(view, low_ns=low, high_ns=low + width)

    def scopes(self, view: View) -> tuple[str, dict[int, Scope]]:
        """Return what the matrix shows for a view: a title, and the scope of each device.

        Devices are indices into Trace.devices: several processes may use the same number.

        A range that is shown whole gives the figures of the range; any other view those of its
        window.
        """
        if view == self.fit(view.range_number):
            if view.range_number == WHOLE:
                return "Whole trace", self._by_device(self.analysis.devices)
            name = self.range_names[view.range_number]
            entries = self.analysis.ranges_named(name)
            count = max(entry.instances for entry in entries)
            times = f", {count} instances" if count > 1 else ""
            return f"Range {name}{times}", self._by_device(entries)
        with self._lock:
            return "Visible window", self._window(view.low_ns, view.high_ns)

    def _measure_window(self, low_ns: int, high_ns: int) -> dict[int, Scope]:
        options = Options(window_ns=(low_ns, high_ns))
        result = overlap.ANALYZER.run(self.trace, options)
        return self._by_device(result.devices)

    def _by_device(self, entries: Sequence[DeviceResult | RangeResult]) -> dict[int, Scope]:
        return {self.device_of(entry): entry.scope for entry in entries}

    def finding_window(self, finding: Finding) -> View | None:
        """Return the view on a finding's evidence, None when it names no window."""
        window = finding.evidence.get("window_ns")
        if not window:
            return None
        low, high = int(window[0]), int(window[1])
        margin = max(MIN_VIEW_NS, (high - low) // 10)
        return self.clamp(View(low - margin, high + margin))


def _names_of(ranges: Ranges, strings: Sequence[str]) -> Iterator[tuple[int, int, bool]]:
    """Yield of each range name its index, its middle depth, and whether a library made it."""
    depth, _ = nesting(ranges)
    library = [number for number, text in enumerate(strings) if text in _LIBRARY_DOMAINS]
    order = np.lexsort((depth, ranges.name))
    name, first, count = np.unique(ranges.name[order], return_index=True, return_counts=True)
    middle = depth[order][first + count // 2]
    if not len(name):
        return
    made = np.logical_or.reduceat(np.isin(ranges.domain, library)[order], first)
    yield from zip(name.tolist(), middle.tolist(), made.tolist(), strict=True)


def view_to_query(view: View, session: Session, theme: str | None = None) -> str:
    """Write a view as the query of the page's address, times in ns from the first operation.

    The page itself reads the theme again.
    """
    origin = session.timeline.low_ns
    fields: dict[str, Any] = {"from": view.low_ns - origin, "to": view.high_ns - origin}
    if view.range_number != WHOLE:
        name = session.range_names[view.range_number]
        fields["range"] = name if len(name) <= _LONGEST_NAME else f"#{view.range_number}"
    if theme:
        fields["theme"] = theme
    return f"?{urllib.parse.urlencode(fields)}"


def view_from_query(query: str | None, session: Session) -> View:
    """Read what :func:`view_to_query` wrote; anything else gives the whole trace."""
    fields = urllib.parse.parse_qs((query or "").lstrip("?"))
    name = fields.get("range", [""])[0]
    number = WHOLE
    if name in session.range_names:
        number = session.range_names.index(name)
    elif name.startswith("#") and name[1:].isdecimal():
        number = int(name[1:])
    fitted = session.fit(number)
    origin = session.timeline.low_ns
    try:
        low, high = (int(fields[key][0]) + origin for key in ("from", "to"))
    except (KeyError, ValueError):
        return fitted
    return session.clamp(replace(fitted, low_ns=low, high_ns=high)) if high > low else fitted
