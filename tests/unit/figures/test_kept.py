"""What a report keeps: the reasons that the page tells, and times that add up."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.figures.details import details
from gpuscope.figures.kept import STEPS, add_costly, sums, told
from gpuscope.figures.timeline import Timeline
from gpuscope.story import TOLD, TOLD_COST, reasons_of
from gpuscope.units import format_ns


@pytest.mark.parametrize("name", ["streams", "event_dependency", "gpu_full", "host_busy"])
def test_the_reasons_are_those_that_the_page_tells(name: str) -> None:
    timeline = Timeline([api.open_trace(samples.path(name))])
    view = timeline.view(0, timeline.end_ns, 100, range(len(timeline.rows)), most=100_000)
    kept = json.loads(json.dumps(told(timeline, view)))
    checked = 0
    for row, lists in kept.items():
        for (_, _, _, items, _), columns in zip(
            view["rows"][int(row)]["marks"], lists, strict=True
        ):
            for item, (reason, since, cost, _, _, size) in zip(
                items[:20], list(zip(*columns, strict=True))[:20], strict=True
            ):
                kind, sentence = list(TOLD.items())[reason]
                text = sentence.format(since=format_ns(since))
                if cost > 0 and kind != "unknown":
                    text += TOLD_COST.format(cost=format_ns(cost))
                expected = details(timeline, int(row), item)
                assert expected["why"] == f"{text[0].upper()}{text[1:]}."
                assert size == timeline.placed[0].operations.size_bytes[item]
                checked += 1
    assert checked > 20


def test_every_operation_has_a_reason() -> None:
    timeline = Timeline([api.open_trace(samples.path("training"))])
    case = timeline.placed[0].case
    known = reasons_of(case, np.arange(len(case.ops)))
    assert set(known.reason.tolist()) <= set(range(len(TOLD)))
    assert len(set(known.reason.tolist())) > 2


def test_times_of_steps_add_up_to_the_whole_band() -> None:
    timeline = Timeline([api.open_trace(samples.path("training"))])
    view = timeline.view(0, timeline.end_ns, 64, range(len(timeline.rows)), most=10)
    kept = sums(timeline, view)
    (row,) = (row for row, drawn in view["rows"].items() if timeline.rows[row].kind == "device")
    assert list(kept) == [row]
    assert all(len(times) <= STEPS for times in kept[row]["sets"].values())
    whole = timeline.together(0, 0, 0, timeline.end_ns)
    assert whole is not None
    busy = sum(part.ns for part in whole.partition if part.classes)
    assert sum(map(sum, kept[row]["sets"].values())) == busy


def test_a_band_that_is_drawn_set_by_set_needs_no_steps() -> None:
    timeline = Timeline([api.open_trace(samples.path("streams"))])
    view = timeline.view(0, timeline.end_ns, 100, range(len(timeline.rows)), most=100_000)
    assert sums(timeline, view) == {}


def test_far_out_what_was_held_up_most_and_the_evidence_have_marks() -> None:
    timeline = Timeline([api.open_trace(samples.path("training"))])
    cost = timeline.placed[0].case.waits.cost_ns
    worst, cheapest = int(cost.argmax()), int(cost.argmin())
    view = timeline.view(0, timeline.end_ns, 64, range(len(timeline.rows)), most=10)

    def found(item: int) -> list[tuple[int, str]]:
        """Return the start and the name of an operation's marks in its stream."""
        row = timeline.row_of_operation(0, item)
        assert row is not None
        return [
            (starts[items.index(item)], view["names"][names[items.index(item)]])
            for _, starts, _, items, names in view["rows"][row]["marks"]
            if item in items
        ]

    before = found(worst)
    add_costly(timeline, view, {(0, cheapest)})
    for item in (worst, cheapest):
        (mark,) = found(item)
        facts = details(timeline, timeline.row_of_operation(0, item) or 0, item)["mark"]
        assert mark[0] == facts["start"]
        assert facts["name"].startswith(mark[1][:4]) or mark[1] in facts["name"]
    add_costly(timeline, view, {(0, cheapest)})
    assert len(found(worst)) == 1
    assert len(before) <= 1
