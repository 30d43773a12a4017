"""The story of an operation or a range as text: bars on a line of time, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from gpuscope.report.rows import in_range
from gpuscope.story import Explanation, OperationStory, RangeStory, ReasonCost, Step
from gpuscope.units import counted, format_bytes, format_ns, printable, visible

WIDTH = 60
"""Characters of a line of time."""
_NARROW = 20
"""Characters of it on a narrow terminal."""
_BESIDE = 68
"""Characters of what stands beside it: a label, two times and a text of 28."""
_TEXT = 60
"""Characters of a text at most."""
_MARGIN = 0.05
"""Part of the line that is left free before its first event."""
_LANES = 12
"""Streams that are drawn."""
MARKS: Mapping[str, str] = {"kernel": "█", "comm": "▒", "h2d": ">", "d2h": "<", "p2p": "="}
_OTHER, _IDLE = "o", "·"


def story_text(
    explanation: Explanation, origin_ns: int, columns: int = _BESIDE + WIDTH + _TEXT
) -> str:
    """Return the text of an explanation; times of day count from `origin_ns`.

    The lines of time of operations, with what is beside them, fit into `columns` from 80 on.
    """
    parts = []
    if explanation.later_ns is not None:
        parts.append(
            f"nothing ran then: the next operation began {format_ns(explanation.later_ns)} later"
        )
    told = [_operation(story, origin_ns, columns) for story in explanation.operations]
    told += [_range(story, origin_ns, columns) for story in explanation.ranges]
    parts += ["\n".join(lines) for lines in told]
    if explanation.left_out:
        short = counted(explanation.left_out, "shorter range is", "shorter ranges are")
        parts.append(f"{short} left out: name one with --range")
    return "\n\n".join(parts) + "\n"


def _heading(story: OperationStory, origin_ns: int) -> str:
    size = f", {format_bytes(story.size_bytes)}" if story.size_bytes else ""
    size += f", {story.memory}" if story.memory else ""
    place = in_range(story.range, 40) or " in no range"
    return (
        f"operation {story.operation}: {printable(story.name, 60)} ({story.op_class}{size}), "
        f"{story.stream}, device {story.device} of process {story.process},{place}, at "
        f"{format_ns(story.start_ns - origin_ns)} for {format_ns(story.end_ns - story.start_ns)}"
    )


def _operation(story: OperationStory, origin_ns: int, columns: int) -> Iterator[str]:
    width = max(_NARROW, min(WIDTH, columns - _BESIDE))
    room = max(_NARROW, min(_TEXT, columns - _BESIDE + 28 - width))
    yield _heading(story, origin_ns)
    steps = [*([story.launch] if story.launch else []), *story.waited_for, *story.host]
    shown = Step("operation", "", story.start_ns, story.end_ns, story.operation)
    # A long predecessor, or the operation's own length, must not press the rest together.
    early = min([story.start_ns, *(step.end_ns for step in steps)])
    early = min([early, *(step.start_ns for step in story.host)])
    late = max([story.start_ns, *(step.end_ns for step in steps)])
    late = min(story.end_ns, late + (late - early) // 2) if late > early else story.end_ns
    low = early - int(_MARGIN * (late - early)) - 1
    for step in [*steps, shown]:
        bar = _bar(step.start_ns, step.end_ns, low, late, width)
        label = "instead" if step.kind == "host" else step.kind
        when = (
            f"{_signed(step.start_ns - story.start_ns)} … {_signed(step.end_ns - story.start_ns)}"
        )
        yield f"  {label:<11} {bar} {when:<22} {printable(step.text, room)}".rstrip()
    yield f"  {story.reason}: {story.told}."


def _bar(start_ns: int, end_ns: int, low: int, high: int, width: int) -> str:
    """Draw a stretch; ends outside of the line are dots."""
    per_char = max(1, high - low) / width
    first = int((start_ns - low) / per_char)
    last = int((end_ns - low) / per_char)
    cells = [" "] * width
    for cell in range(max(0, first), min(width - 1, last) + 1):
        cells[cell] = "─"
    if first < 0 <= last:
        cells[0] = "…"
    if last >= width > first:
        cells[width - 1] = "…"
    if 0 <= first < width:
        cells[first] = "├"
    if 0 <= last < width:
        cells[last] = "┤" if last > first else "│"
    return "".join(cells)


def _signed(time_ns: int) -> str:
    return "0" if not time_ns else f"{'+' if time_ns > 0 else '−'}{format_ns(abs(time_ns))}"


def _range(story: RangeStory, origin_ns: int, columns: int) -> Iterator[str]:
    name = "outside of all ranges" if story.range is None else printable(visible(story.range), 60)
    foreign = f"only other work {format_ns(story.foreign_ns)}, " if story.foreign_ns else ""
    yield (
        f"{name}, device {story.device} of process {story.process}: {story.instances} ×, span "
        f"{format_ns(story.span_ns)}, busy {format_ns(story.busy_ns)}, {foreign}idle "
        f"{format_ns(story.idle_ns)}"
    )
    low, high = story.drawn_window_ns
    which = f"instance {story.drawn}, of median span, " if story.instances > 1 else ""
    yield f"  {which}from {format_ns(low - origin_ns)} for {format_ns(high - low)}:"
    for lane in story.lanes[:_LANES]:
        cells = [_IDLE] * WIDTH
        for bar in lane.bars:
            first = int((bar.start_ns - low) * WIDTH / max(1, high - low))
            last = int((bar.end_ns - low) * WIDTH / max(1, high - low))
            for cell in range(first, min(WIDTH, max(last, first + 1))):
                cells[cell] = MARKS.get(bar.op_class, _OTHER)
        yield f"  {lane.stream:<16} {''.join(cells)}"
    if len(story.lanes) > _LANES:
        yield f"  and {counted(len(story.lanes) - _LANES, 'more stream')}"
    yield "  " + "  ".join(f"{mark} {name}" for name, mark in [*MARKS.items(), ("other", _OTHER)])
    if story.reasons:
        yield "  what operations waited for last, how often, and what that cost each on average:"
    for op_class, entries in groupby(story.reasons, key=lambda entry: entry.op_class):
        yield f"  {op_class} waited for " + ", ".join(_reason(entry) for entry in entries)
    for worst in story.worst:
        yield ""
        yield from ("  " + line for line in _operation(worst, origin_ns, columns - 2))


def _reason(entry: ReasonCost) -> str:
    reason = "nothing known" if entry.reason == "unknown" else entry.reason
    cost = f", {format_ns(entry.cost_ns / entry.count)} each" if entry.cost_ns else ""
    return f"{reason} ({entry.count} ×{cost})"
