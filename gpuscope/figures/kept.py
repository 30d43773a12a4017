"""What a report keeps beside its one view, for what the page would ask the server.

Why each operation that is drawn by itself started when it did, in a few numbers; and the time of
each set of classes in narrow steps, from which the figures of any stretch follow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from gpuscope.figures.timeline import Timeline
from gpuscope.story import reasons_of

STEPS = 2_048
"""Steps of time of a device's band; figures of a stretch are those of whole steps."""


COSTLY = 2_000
"""Operations of a trace that have a mark because what they waited for cost most."""


def add_costly(
    timeline: Timeline, view: dict[str, Any], shown: Collection[tuple[int, int]]
) -> None:
    """Add to a view the operations that were held up most where it has but shares of columns.

    Parameters
    ----------
    view
        What :meth:`Timeline.view` returned; its rows and names get more.
    shown
        Operations that must be there, by trace and number: those that findings name.
    """
    names = {name: at for at, name in enumerate(view["names"])}
    for number, placed in enumerate(timeline.placed):
        ops, cost = placed.operations, placed.case.waits.cost_ns
        most = (
            np.argpartition(-cost, COSTLY)[:COSTLY] if len(cost) > COSTLY else np.arange(len(cost))
        )
        wanted = {item for trace, item in shown if trace == number}.union(
            most[cost[most] > 0].tolist()
        )
        found: dict[tuple[int, int], list[int]] = {}
        for item in sorted(wanted):
            row = timeline.row_of_operation(number, item)
            if row is not None and view["rows"][row]["columns"]:
                found.setdefault((row, int(ops.op_class[item])), []).append(item)
        for (row, paint), items in found.items():
            marks = view["rows"][row]["marks"]
            known = {item for drawn in marks if drawn[0] == paint for item in drawn[3]}
            new = np.array([item for item in items if item not in known], np.int64)
            texts = [timeline.name_of(row, item, paint) for item in new.tolist()]
            marks.append(
                [
                    paint,
                    (ops.start_ns[new] + placed.shift_ns).tolist(),
                    (ops.end_ns[new] - ops.start_ns[new]).tolist(),
                    new.tolist(),
                    [names.setdefault(text, len(names)) for text in texts],
                ]
            )
    view["names"] = list(names)


def told(timeline: Timeline, view: Mapping[str, Any]) -> dict[int, list[list[list[int]]]]:
    """Return the reasons of the operations that a view draws by themselves, as JSON.

    By stream row, a list for each of its lists of marks: the columns of
    :class:`gpuscope.story.Reasons` in their order, and the sizes in bytes.
    """
    found: dict[int, list[list[list[int]]]] = {}
    for row, drawn in view["rows"].items():
        if timeline.rows[row].kind != "stream":
            continue
        placed = timeline.placed[timeline.rows[row].trace]
        found[row] = []
        for _, _, _, item, _ in drawn["marks"]:
            items = np.array(item, np.int64)
            known = reasons_of(placed.case, items)
            size = placed.operations.size_bytes[items]
            columns = (known.reason, known.since_ns, known.cost_ns, known.before, known.call, size)
            found[row].append([column.tolist() for column in columns])
    return found


def sums(timeline: Timeline, view: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the time of each set of classes step by step, as JSON.

    By device row, for those whose band is not drawn set by set in the view, for which it follows
    from the marks: ``low_ns`` and ``step_ns``, and by paint the ns in each step.
    """
    low, high = view["low_ns"], view["high_ns"]
    step = max(1, -(-(high - low) // STEPS))
    edges = low + step * np.arange(-(-(high - low) // step) + 1, dtype=np.int64)
    return {
        row: {
            "low_ns": low,
            "step_ns": step,
            "sets": {
                paint: time.tolist() for paint, time in timeline.band_sums(row, edges).items()
            },
        }
        for row, drawn in view["rows"].items()
        if timeline.rows[row].kind == "device" and drawn["columns"]
    }
