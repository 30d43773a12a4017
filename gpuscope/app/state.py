"""What the page knows: the traces, their analyses, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.figures.compare import Alignment
from gpuscope.figures.overlap import Together
from gpuscope.figures.timeline import OPEN_DEVICES, Timeline
from gpuscope.model.result import DeviceResult, Finding, RangeResult, Scope
from gpuscope.model.trace import Trace, ranks_of
from gpuscope.progress import Progress, silent
from gpuscope.report.cards import order_ranges
from gpuscope.units import visible

_FIT_MARGIN = 0.02
WHOLE = -1
"""Number of the whole trace among the ranges."""


@dataclass(frozen=True, slots=True)
class View:
    """What the matrix is about: a stretch of time of the page, a picked range, and a device."""

    low_ns: int
    high_ns: int
    range_number: int = WHOLE
    """Position in :attr:`Session.ranges_shown`, while that range is shown whole."""
    device_number: int = 0
    """Position in :attr:`Session.devices`."""
    brushed: bool = False
    """Whether the stretch is a selection, not all that is seen."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> View:
        """Read what the page's script keeps in the store.

        Raises
        ------
        ValueError
            It is no view.
        """
        try:
            brush = data.get("brush")
            low, high = brush if brush else (data["low"], data["high"])
            return cls(
                int(low),
                int(high),
                WHOLE if brush else int(data["range"]),
                int(data["device"]),
                bool(brush),
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            msg = "this is no view"
            raise ValueError(msg) from error


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A range of a trace on the page, by name, with the view that shows it."""

    trace: int
    name: str
    low_ns: int
    high_ns: int


class Session:
    """One or several traces on the page; everything that is asked for.

    Parameters
    ----------
    traces
        In the order of the page.
    beside
        What is known of each beside it, as options: nothing by default.
    progress
        Told how far the work is.
    alignment
        The clock of traces of different runs.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        beside: Sequence[Options] = (),
        progress: Progress = silent,
        alignment: Alignment | None = None,
    ) -> None:
        self.traces = tuple(traces)
        options = beside or [Options()] * len(traces)
        self.analyses = api.analyze_together(traces, options, progress=progress)
        self.timeline = Timeline(traces, progress, alignment)
        self.of_ranks = (
            alignment is None and self.timeline.alignment.common and bool(ranks_of(traces))
        )
        """Whether the traces are those of the ranks of one run."""
        self._device = [
            {
                (trace.processes[device.process].pid, device.number): index
                for index, device in enumerate(trace.devices)
            }
            for trace in traces
        ]
        self.devices = [
            (number, self.device_of(number, entry), entry)
            for number, analysis in enumerate(self.analyses)
            for entry in analysis.devices
        ]
        """Trace, index into its devices and figures of every device on which something ran."""
        self.findings: list[tuple[int, Finding]] = [
            (number, finding)
            for number, analysis in enumerate(self.analyses)
            for finding in analysis.findings
        ]
        limits = [each.ratio_limits for each in options]
        self.joint = self.of_ranks or len(self.devices) > OPEN_DEVICES
        """Whether the ranks, or the GPUs of a trace, share a card for each range."""
        ordered = [
            order_ranges(*each, joint=self.joint)
            for each in zip(traces, self.analyses, limits, strict=True)
        ]
        self.ranges = [ranked for ranked, _ in ordered]
        """The ranges of each trace that have pairs, the best ones first."""
        self.carded = [carded for _, carded in ordered]
        """Those that get a card."""
        windows = [self.timeline.range_windows(number) for number in range(len(traces))]
        self.ranges_shown = [
            NamedRange(number, name, *self.margins(*windows[number][name]))
            for number, ranked in enumerate(self.ranges)
            for name in dict.fromkeys(
                entry.name for entry in (*ranked, *self.analyses[number].ranges)
            )
            if name in windows[number]
        ]
        """For the range picker: each name once, the best ones first."""

    def device_of(self, number: int, entry: DeviceResult | RangeResult) -> int:
        """Return the device that figures are about, as an index into Trace.devices."""
        return self._device[number][entry.process, entry.device]

    def finding_device(self, number: int, finding: Finding) -> int | None:
        """Return the position in :attr:`devices` of what a finding is about, None without one."""
        about = number, finding.process, finding.device
        places = [(at, entry.process, entry.device) for at, _, entry in self.devices]
        return places.index(about) if about in places else None

    @staticmethod
    def margins(low_ns: int, high_ns: int) -> tuple[int, int]:
        """Leave some room on either side of a stretch of time."""
        margin = max(1, round((high_ns - low_ns) * _FIT_MARGIN))
        return low_ns - margin, high_ns + margin

    def fit(self) -> View:
        """Return the view that shows all."""
        return View(*self.margins(0, self.timeline.end_ns))

    def range_number(self, number: int, name: str) -> int:
        """Return the position of a range of a trace in the picker."""
        return next(
            at
            for at, each in enumerate(self.ranges_shown)
            if (each.trace, each.name) == (number, name)
        )

    def scope_of(self, view: View) -> tuple[str, Scope | Together | None]:
        """Return what the matrix shows for a view, and its title; None when nothing ran.

        A range that is shown whole gives the figures of the range, over all its instances by
        launch; all that there is those of the device; any other view those of its window.
        """
        device_number = min(max(view.device_number, 0), len(self.devices) - 1)
        number, device, entry = self.devices[device_number]
        if 0 <= view.range_number < len(self.ranges_shown):
            shown = self.ranges_shown[view.range_number]
            entries = self.analyses[shown.trace].ranges_named(shown.name)
            mine = [
                e for e in entries if (shown.trace, self.device_of(number, e)) == (number, device)
            ]
            count = max(each.instances for each in entries)
            times = f", {count:,} instances" if count > 1 else ""
            return f"Range {visible(shown.name)}{times}", mine[0].scope if mine else None
        if view.low_ns <= 0 and view.high_ns >= self.timeline.end_ns and not view.brushed:
            return "Whole trace", entry.scope
        title = "Selection" if view.brushed else "Visible window"
        return title, self.timeline.together(number, device, view.low_ns, view.high_ns)

    def place_of(self, number: int, finding: Finding) -> str:
        """Return where a finding is: its range, and of several GPUs or traces which."""
        parts = [] if finding.range is None else [visible(finding.range)]
        at = self.finding_device(number, finding)
        if at is not None and sum(each[0] == number for each in self.devices) > 1:
            parts.append(self.timeline.device_label(*self.devices[at][:2]))
        elif len(self.traces) > 1:
            parts.append(self.timeline.names[number])
        return " · ".join(parts)

    def evidence(self, number: int, finding: Finding) -> list[tuple[int, int, Mapping[str, Any]]]:
        """Return the row, the number and the facts of each operation that a finding names."""
        return [
            (row, example["operation"], example)
            for example in finding.evidence.get("examples", ())
            if example.get("operation") is not None
            and (row := self.timeline.row_of_operation(number, example["operation"])) is not None
        ]

    def finding_window(self, number: int, finding: Finding) -> tuple[int, int] | None:
        """Return the stretch that shows a finding's evidence, None when it names no window."""
        window = finding.evidence.get("window_ns")
        if not window:
            return None
        shift = self.timeline.placed[number].shift_ns
        low, high = int(window[0]) + shift, int(window[1]) + shift
        margin = max(1, (high - low) // 10)
        return low - margin, high + margin
