"""What is known about one item of the timeline: an operation, a call, a range."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.figures.timeline import Placed, Row, Timeline, plain
from gpuscope.model.classes import CLASSES, COPY_CLASSES
from gpuscope.model.tables import STAGED
from gpuscope.story import OperationStory, tell_operation
from gpuscope.units import NS_PER_S, counted, format_bytes, format_ns, format_rate, visible

LIKE_SIZE = 0.5
"""Copies of at least this share of a copy's size show what its link can do."""
_PATH = ("op_class", "src_kind", "dst_kind", "src_device", "dst_device", "device")
"""Columns in which copies of one path are equal."""
_KINDS = 8
"""Kinds of operations, and paths, whose figures are kept for the next that is pointed at."""
Facts = list[tuple[str, str]]
Float = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def details(timeline: Timeline, number: int, item: int) -> dict[str, Any]:
    """Return what is known of an item of a row, as JSON.

    Keys: ``title``, ``facts`` (pairs of label and text), ``why`` (a sentence, for operations) and
    ``arrows``: what it waited for, each with its row, item and time.

    Raises
    ------
    IndexError
        There is no such row or item.
    """
    if not 0 <= number < len(timeline.rows):
        raise IndexError(number)
    row = timeline.rows[number]
    if row.kind in ("group", "device"):
        raise IndexError(number)
    placed = timeline.placed[row.trace]
    table, name = placed.table(row.kind)
    if table is None or not 0 <= item < len(table):
        raise IndexError(item)
    if name == "operations":
        return _operation(timeline, row, placed, item)
    start, end = int(table.start_ns[item]), int(table.end_ns[item])
    shift = placed.shift_ns
    length, begun = _exact(end - start) if end >= 0 else "never ended", _at(start + shift)
    facts: Facts = [("duration", length), ("start", begun)]
    if row.kind == "range":  # its bar is what the GPU did of it
        start, end = _on_gpu(placed, row.device, item)
        facts = [
            ("duration", _exact(end - start)),
            ("start", _at(start + shift)),
            ("on the host", f"{length} {begun}"),
        ]
    facts.append(("thread", str(placed.trace.threads[table.thread[item]].tid)))
    arrows: list[dict[str, Any]] = []
    if name == "api":
        result = int(table.result[item])
        facts.append(("returned", "success" if result == 0 else f"error {result}"))
        launched = np.flatnonzero(placed.operations.launch == item)
        facts.append(("launched", counted(len(launched), "operation")))
        arrows = [
            link
            for each in launched[:1].tolist()
            if (link := _link(timeline, row.trace, "operation", each, False))
        ]
    elif name == "ranges":
        domain = int(table.domain[item])
        if domain >= 0:
            facts.append(("domain", plain(placed.trace.strings[domain])))
    size = int(table.size_bytes[item]) if name != "api" else -1
    if size >= 0:
        facts.append(("message", format_bytes(size)))
    peer = int(table.peer[item]) if name != "api" else -1
    if peer >= 0:
        facts.append(("peer", f"rank {peer}"))
    text = placed.trace.strings[table.name[item]]
    mark = _mark(timeline, row.trace, text, start, end)
    return {"title": mark["name"], "facts": facts, "why": "", "arrows": arrows, "mark": mark}


def _on_gpu(placed: Placed, device: int, item: int) -> tuple[int, int]:
    """Return when a range's first operation on a device started, and its last ended.

    Raises
    ------
    IndexError
        It has none there.
    """
    ranges = placed.ranges
    (mine,) = np.nonzero((ranges.range_row == item) & (ranges.device == device))
    return int(ranges.start_ns[mine[0]]), int(ranges.end_ns[mine[0]])


def _mark(timeline: Timeline, number: int, text: str, start: int, end: int) -> dict[str, Any]:
    """Return what the script draws an item by."""
    shift = timeline.placed[number].shift_ns
    name = plain(visible(text), 2_000)
    return {"name": name, "start": start + shift, "end": max(start, end) + shift}


def _exact(time_ns: int) -> str:
    return f"{format_ns(time_ns)} ({time_ns:,} ns)" if time_ns >= 1_000 else f"{time_ns} ns"


def _at(time_ns: int) -> str:
    return f"at {time_ns / 1e6:,.6f} ms"


def _operation(timeline: Timeline, row: Row, placed: Placed, item: int) -> dict[str, Any]:
    trace, ops = placed.trace, placed.operations
    story = tell_operation(placed.case, item)
    start, end = int(ops.start_ns[item]), int(ops.end_ns[item])
    op_class = CLASSES[ops.op_class[item]]
    facts: Facts = [
        ("class", op_class),
        ("duration", _exact(end - start)),
        ("start", _at(start + placed.shift_ns)),
        ("stream", _stream(timeline, row.trace, item)),
    ]
    if story.range is not None:
        facts.append(("range", plain(visible(story.range))))
    size = int(ops.size_bytes[item])
    if size:
        rate = size * NS_PER_S / (end - start) if end > start else None
        facts.append(("size", f"{format_bytes(size)} · {format_rate(rate)}"))
    if story.memory is not None:
        facts.append(("memory", story.memory))
    if op_class in COPY_CLASSES and size:
        facts += _against_link(placed, item)
    facts += _against_siblings(placed, item)
    if op_class == "p2p":
        facts.append(("link", f"GPU {ops.src_device[item]} → GPU {ops.dst_device[item]}"))
    if ops.flags[item] & STAGED:
        facts.append(("staged", "a leg of a peer copy through the host"))
    if ops.graph_node[item] >= 0:
        facts.append(("graph node", str(int(ops.graph_node[item]))))
    config = trace.kernel_configs
    if config is not None:
        at = int(np.searchsorted(config.operation, item))
        if at < len(config) and config.operation[at] == item:
            facts.append(
                (
                    "launch",
                    f"{counted(config.grid_blocks[at], 'block')} of "
                    f"{counted(config.block_threads[at], 'thread')}, "
                    f"{counted(config.registers_per_thread[at], 'register')}, "
                    f"{format_bytes(int(config.shared_bytes[at]))} shared",
                )
            )
    for at, step in enumerate(story.host):
        time = format_ns(step.end_ns - step.start_ns)
        facts.append(("" if at else "its thread meanwhile", f"{plain(step.text)}: {time}"))
    mark = _mark(timeline, row.trace, trace.strings[ops.name[item]], start, end)
    return {
        "title": mark["name"],
        "facts": facts,
        "why": f"{story.told[0].upper()}{story.told[1:]}.",
        "arrows": _arrows(timeline, row.trace, placed, story),
        "mark": mark,
    }


def _arrows(
    timeline: Timeline, number: int, placed: Placed, story: OperationStory
) -> list[dict[str, Any]]:
    """Return the launch call and the operations that an operation waited for."""
    api = placed.trace.api
    arrows = []
    call = int(placed.operations.launch[story.operation])
    if api is not None and 0 <= call < len(api):
        thread = timeline.row_of_thread[number].get(int(api.thread[call]))
        if thread is not None:
            start = int(api.start_ns[call]) + placed.shift_ns
            arrows.append(
                {
                    "kind": "launch",
                    "row": thread,
                    "item": call,
                    "start": start,
                    "end": int(api.end_ns[call]) + placed.shift_ns,
                    "at": start,
                    "name": timeline.short_name(number, int(api.name[call])),
                    "decisive": story.reason == "host",
                }
            )
    for step in story.waited_for:
        if step.operation is not None:
            link = _link(timeline, number, step.kind, step.operation, step.kind == story.reason)
            arrows += [link] if link else []
    return arrows


def _link(
    timeline: Timeline, number: int, kind: str, item: int, decisive: bool
) -> dict[str, Any] | None:
    """Return an arrow from the end of an operation; None when it has no row."""
    placed = timeline.placed[number]
    ops = placed.operations
    row = timeline.row_of_operation(number, item)
    if row is None:
        return None
    end = int(ops.end_ns[item]) + placed.shift_ns
    return {
        "kind": kind,
        "row": row,
        "item": item,
        "start": int(ops.start_ns[item]) + placed.shift_ns,
        "end": end,
        "at": end,
        "name": timeline.short_name(number, int(ops.name[item])),
        "decisive": decisive,
    }


def _stream(timeline: Timeline, number: int, item: int) -> str:
    trace = timeline.placed[number].trace
    at = int(timeline.placed[number].operations.stream[item])
    words = [timeline.stream_label(number, item)]
    if at >= 0:
        stream = trace.streams[at]
        words += [stream.kind] if stream.kind else []
        words += [f"priority {stream.priority}"] if stream.priority else []
    return ", ".join(words)


@lru_cache(maxsize=_KINDS)
def _rates_of_path(placed: Placed, path: tuple[int, ...]) -> tuple[Int64, Float]:
    """Return the sizes of the copies of a path, rising, and the best rate of each and larger ones.

    In bytes and bytes/ns; both of shape (copies that took any time,).
    """
    ops = placed.operations
    same = np.ones(len(ops), np.bool_)
    for column, value in zip(_PATH, path, strict=True):
        same &= getattr(ops, column) == value
    rows = np.flatnonzero(same & (ops.end_ns > ops.start_ns))
    rows = rows[np.argsort(ops.size_bytes[rows], kind="stable")]
    size = ops.size_bytes[rows]
    rate = size / (ops.end_ns[rows] - ops.start_ns[rows])
    return size, np.maximum.accumulate(rate[::-1])[::-1]


def _against_link(placed: Placed, item: int) -> Facts:
    """Compare a copy's rate with the best that copies on the same path and as large reached."""
    ops = placed.operations
    size, best = _rates_of_path(placed, tuple(int(getattr(ops, name)[item]) for name in _PATH))
    alike = int(np.searchsorted(size, LIKE_SIZE * ops.size_bytes[item]))
    duration = int(ops.end_ns[item] - ops.start_ns[item])
    if len(size) - alike < 2 or not duration:
        return []
    own, most = float(ops.size_bytes[item] / duration), float(best[alike])
    return [
        (
            "of its path",
            f"{100 * own / most:.0f} % of the fastest such copy here "
            f"({format_rate(most * NS_PER_S)})",
        )
    ]


@lru_cache(maxsize=_KINDS)
def _durations(placed: Placed, name: int, size_bytes: int, op_class: int) -> Int64:
    """Return how long the operations of a name, size and class took, rising."""
    ops = placed.operations
    rows = np.flatnonzero(
        (ops.name == name) & (ops.size_bytes == size_bytes) & (ops.op_class == op_class)
    )
    return np.sort(ops.end_ns[rows] - ops.start_ns[rows])


def _against_siblings(placed: Placed, item: int) -> Facts:
    """Compare an operation's duration with that of those of its name and size."""
    ops = placed.operations
    kind = int(ops.name[item]), int(ops.size_bytes[item]), int(ops.op_class[item])
    duration = _durations(placed, *kind)
    if len(duration) < 2:
        return [("siblings", "the only one of its kind")]
    own = int(ops.end_ns[item] - ops.start_ns[item])
    longer = 1 - int(np.searchsorted(duration, own, side="right")) / len(duration)
    middle = float(duration[(len(duration) - 1) // 2] + duration[len(duration) // 2]) / 2
    return [
        (
            "siblings",
            f"{len(duration):,} alike: {format_ns(int(duration[0]))} to "
            f"{format_ns(int(duration[-1]))}, median {format_ns(middle)}; "
            f"{100 * longer:.0f} % take longer",
        )
    ]
