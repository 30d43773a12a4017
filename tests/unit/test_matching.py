"""Kernels of three ranks, matched by communicator and by who sends to whom."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.communication import exchanges
from gpuscope.model.classes import CODE
from gpuscope.model.exchange import Clock, Exchange
from gpuscope.model.result import Communication
from gpuscope.model.trace import Process, Trace
from tests.make_trace import make_trace

WORLD, PAIR = 0x1111, 0x2222
Call = tuple[str, dict[str, Any]]


def collective(communicator: int, name: str = "ncclAllReduce", size: int = 64) -> list[Call]:
    return [(name, {"bytes": size, "communicator": communicator})]


def group(*messages: tuple[str, int], communicator: int = WORLD, size: int = 8) -> list[Call]:
    calls = [
        (f"nccl{kind}", {"peer": peer, "bytes": size, "communicator": communicator})
        for kind, peer in messages
    ]
    return [("ncclGroupStart", {}), *calls, ("ncclGroupEnd", {})]


BOTH = [group(("Send", 1), ("Recv", 1)), group(("Send", 0), ("Recv", 0))]


def rank(number: int, *kernels: tuple[int, int, list[Call]], utc: int = 0) -> Trace:
    """Return the trace of a rank: of each kernel its start, its end, and what it was made for."""
    ranges, rows = [], []
    at = 0
    for start, end, calls in kernels:
        for name, more in calls:
            ranges.append((name, at, at + 2, {"domain": "NCCL", **more}))
            at += 2
        kernel = "SendRecv" if calls[-1][0] == "ncclGroupEnd" else calls[-1][0]
        rows.append((start, end, "s1", {"name": kernel, "launch": at - 1}))
    trace = make_trace(comm=rows, ranges=ranges)
    process = Process(100 + number, "made", number)
    return dataclasses.replace(trace, start_utc_ns=utc, processes=(process,))


def told(exchange: Exchange | None) -> list[tuple[int, int, int]]:
    """Return of each kernel transfer, the rank that came last, and how late."""
    assert exchange is not None
    columns = (exchange.transfer_ns, exchange.late, exchange.late_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_ranks_of_a_subgroup_are_matched_among_themselves() -> None:
    """The third rank takes no part in what the other two reduce, and has fewer kernels."""
    pair, world = collective(PAIR), collective(WORLD)
    traces = [
        rank(0, (100, 200, pair), (300, 400, world)),
        rank(1, (150, 200, pair), (360, 400, world)),
        rank(2, (390, 400, world)),
    ]
    zero, one, two = exchanges(traces)
    assert told(zero) == [(50, 1, 50), (10, 2, 90)]
    assert told(one) == [(50, 1, 50), (10, 2, 90)]
    assert told(two) == [(10, 2, 90)]
    assert zero is not None
    assert (zero.estimated, zero.reason) == (False, None)
    # In whatever order the reports come.
    swapped = exchanges([traces[2], traces[0], traces[1]])
    assert told(swapped[1]) == [(50, 2, 50), (10, 0, 90)]
    assert swapped[1] is not None
    assert swapped[1].ranks == ("rank 2", "rank 0", "rank 1")


def test_a_ring_of_neighbours_ends_together() -> None:
    both = [("Send", 1), ("Recv", 1), ("Send", 2), ("Recv", 2)]
    zero, one, two = exchanges(
        [
            rank(0, (100, 200, group(*both))),
            rank(1, (130, 200, group(("Send", 0), ("Recv", 0), ("Send", 2), ("Recv", 2)))),
            rank(2, (180, 200, group(("Send", 0), ("Recv", 0), ("Send", 1), ("Recv", 1)))),
        ]
    )
    assert told(zero) == told(one) == told(two) == [(20, 2, 80)]


def row_of_neighbours() -> list[Trace]:
    """Three ranks in a row; the last comes 60 late to an exchange, on a clock 1000 behind.

    What the first has to do with the second is done long before.
    """
    world = collective(WORLD)
    return [
        rank(0, (100, 120, world), (200, 215, group(("Send", 1), ("Recv", 1)))),
        rank(
            1,
            (100, 120, world),
            (200, 290, group(("Send", 0), ("Recv", 0), ("Send", 2), ("Recv", 2))),
        ),
        rank(2, (90, 110, world), (250, 280, group(("Send", 1), ("Recv", 1)))),
    ]


def test_in_a_row_of_neighbours_only_those_wait_whose_partner_is_late() -> None:
    zero, one, two = exchanges(row_of_neighbours())
    # The collectives end together: the third clock is 10 behind.
    assert two is not None
    assert (two.clocks[0].offset_ns, two.clocks[0].matched) == (10, 1)
    assert told(zero)[1] == (15, -1, 0)
    assert told(one)[1] == (30, 2, 60)
    assert told(two)[1] == (30, 2, 60)


def test_sends_and_receives_of_different_kernels_are_paired_one_by_one() -> None:
    """A rank sends to two others, a kernel each; they receive it under kernels of other names."""
    zero, one, two = exchanges(
        [
            rank(
                0,
                (100, 150, group(("Send", 1))),
                (160, 250, group(("Send", 2))),
                (300, 320, collective(WORLD)),
            ),
            rank(
                1,
                (140, 150, [("ncclRecv", {"peer": 0, "bytes": 8, "communicator": WORLD})]),
                (310, 320, collective(WORLD)),
            ),
            rank(2, (200, 250, group(("Recv", 0))), (310, 320, collective(WORLD))),
        ]
    )
    assert told(zero)[:2] == [(10, 1, 40), (50, 2, 40)]
    assert told(one)[0] == (10, 1, 40)
    assert told(two)[0] == (50, 2, 40)


@pytest.mark.parametrize("name", ["ncclBroadcast", "ncclReduce"])
def test_a_root_that_is_done_early_came_no_later(name: str) -> None:
    """Who has only to send is done in 5; the other receives for 40 more, though both began at once.

    The clocks are 1000 apart, which the all-reduces tell. In the second one rank is 30 late.
    """
    world, rooted = collective(WORLD), collective(WORLD, name)
    zero, one = exchanges(
        [
            rank(0, (100, 120, world), (200, 205, rooted), (300, 305, rooted)),
            rank(1, (1110, 1120, world), (1200, 1245, rooted), (1270, 1345, rooted), utc=-1000),
        ]
    )
    assert one is not None
    assert one.clocks[0] == Clock(offset_ns=0, residual_ns=0, worst_ns=0, matched=1)
    assert told(zero)[1:] == [(5, -1, 0), (5, 0, 30)]
    assert told(one)[1:] == [(45, -1, 0), (45, 0, 30)]


def test_a_send_that_is_done_early_made_nobody_wait() -> None:
    world = collective(WORLD)
    zero, one = exchanges(
        [
            rank(0, (100, 120, world), (200, 205, group(("Send", 1)))),
            rank(1, (110, 120, world), (190, 245, group(("Recv", 0)))),
        ]
    )
    assert told(zero)[1] == (5, 0, 10)
    assert told(one)[1] == (45, 0, 10)


@pytest.mark.parametrize(
    ("first", "second", "offset"),
    [
        # Collectives without a root tell it, whatever else there is.
        ((100, 120, collective(WORLD)), (100, 127, collective(WORLD)), -7),
        # Messages there and back do by the middle between them: 20 and 8.
        ((100, 120, group(("Recv", 1))), (100, 112, group(("Send", 0))), -6),
        # Then the ends of exchanges, and last those of anything.
        ((100, 120, BOTH[0]), (100, 123, BOTH[1]), -3),
        (None, None, -20),
    ],
)
def test_what_tells_how_far_clocks_are_apart(first: Any, second: Any, offset: int) -> None:
    """A send ends 20 before its receive on the two clocks."""
    send = ((10, 20, group(("Send", 1))), (10, 40, group(("Recv", 0))))
    _, one = exchanges(
        [rank(0, *filter(None, [send[0], first])), rank(1, *filter(None, [send[1], second]))]
    )
    assert one is not None
    assert one.clocks[0].offset_ns == offset


def test_what_does_not_fit_stays_unmatched_and_the_rest_does_not() -> None:
    world = collective(WORLD)
    zero, one = exchanges(
        [
            rank(0, (100, 200, collective(PAIR)), (300, 400, world)),
            rank(1, (350, 400, world), (410, 420, collective(PAIR)), (430, 440, collective(PAIR))),
        ]
    )
    assert told(zero) == [(-1, -1, -1), (50, 1, 50)]
    assert told(one)[0] == (50, 1, 50)
    assert zero is not None
    assert one is not None
    said = "the ranks' collectives of a communicator differ in number, in name or in bytes"
    assert zero.reason == f"1 of 2 kernels stay unmatched: {said}"
    assert one.reason == f"2 of 3 kernels stay unmatched: {said}"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (collective(WORLD, size=64), collective(WORLD, size=128), "in bytes"),
        (collective(WORLD), collective(WORLD, "ncclReduce"), "in name"),
        (collective(WORLD), collective(PAIR), "one rank only"),
        (group(("Send", 1)), group(("Send", 0)), None),
        (group(("Send", 1)), group(("Recv", 0), ("Recv", 0)), None),
        (group(("Send", 1), size=8), group(("Recv", 0), size=16), None),
    ],
)
def test_what_cannot_be_the_same(first: list[Call], second: list[Call], reason: str | None) -> None:
    """Messages that do not pair are left to the order of the kernels."""
    zero, _ = exchanges([rank(0, (100, 200, first)), rank(1, (150, 200, second))])
    assert zero is not None
    if reason is None:
        assert told(zero) == [(50, 1, 50)]
    else:
        assert zero.ranks == ()
        assert zero.reason is not None
        assert reason in zero.reason


def test_messages_that_do_not_pair_and_differ_in_number_are_not_matched() -> None:
    send = group(("Send", 1))
    zero, _ = exchanges(
        [rank(0, (100, 200, send), (210, 220, send)), rank(1, (150, 200, group(("Recv", 0))))]
    )
    assert zero is not None
    assert zero.reason == "the sends and receives of a communicator do not fit each other"


def test_who_waits_for_a_rank_whose_trace_is_missing_is_not_said() -> None:
    """Of a row of neighbours two are here: the second one may have waited for the third."""
    zero, one = exchanges(row_of_neighbours()[:2])
    assert told(zero) == [(20, -1, 0), (15, -1, 0)]
    assert told(one) == [(20, -1, 0), (-1, -1, -1)]
    assert zero is not None
    assert one is not None
    assert zero.reason is None
    said = "messages go to ranks, or come from ranks, whose traces are not here"
    assert one.reason == f"1 of 2 kernels stay unmatched: {said}"


def test_two_ranks_of_four_that_do_not_speak_with_each_other() -> None:
    """They are the first and the third of a ring, and have equally many kernels."""
    first = group(("Send", 1), ("Recv", 1), ("Send", 3), ("Recv", 3))
    zero, _ = exchanges([rank(0, (100, 200, first)), rank(2, (150, 200, first))])
    assert zero is not None
    assert zero.ranks == ()
    assert zero.reason == "messages go to ranks, or come from ranks, whose traces are not here"


def test_a_group_over_two_communicators_is_matched_by_order() -> None:
    both: list[Call] = [
        ("ncclGroupStart", {}), *collective(WORLD), *collective(PAIR), ("ncclGroupEnd", {}),
    ]  # fmt: skip
    zero, _ = exchanges([rank(0, (100, 200, both)), rank(1, (150, 200, both))])
    assert told(zero) == [(50, 1, 50)]


def test_two_gpus_of_one_process_in_a_group() -> None:
    """One thread calls for both GPUs: which of the calls a kernel is for, nobody says."""
    calls = [
        ("ncclGroupStart", 0, 1, {}),
        ("ncclSend", 2, 3, {"peer": 1, "bytes": 8, "communicator": WORLD}),
        ("ncclRecv", 4, 5, {"peer": 0, "bytes": 8, "communicator": WORLD}),
        ("ncclGroupEnd", 6, 9, {}),
    ]
    trace = make_trace(
        comm=[
            (100, 200, "s1", {"name": "SendRecv", "launch": 7}),
            (160, 200, "s1", {"name": "SendRecv", "launch": 8, "device": 1}),
        ],
        ranges=calls,
        devices=2,
    )
    (exchange,) = exchanges([trace])
    assert told(exchange) == [(40, 1, 60), (40, 1, 60)]
    assert exchange is not None
    assert exchange.ranks == ("GPU 0 of process 100", "GPU 1 of process 100")


def test_clocks_are_brought_together_over_ranks_in_between() -> None:
    """The first and the third rank share no communicator."""
    traces = [
        rank(0, (100, 200, collective(WORLD)), utc=1000),
        rank(1, (100, 200, collective(WORLD)), (300, 400, collective(PAIR)), utc=995),
        rank(2, (100, 390, collective(PAIR)), utc=990),
    ]
    _, one, two = exchanges(traces)
    assert one is not None
    assert two is not None
    assert one.clocks[0].offset_ns == 5
    assert two.clocks[0].offset_ns == 20


def loop(number: int, ends: list[int], sizes: list[int], utc: int = 0) -> Trace:
    """Return the trace of a rank that reduces over and over; the other rank may be late."""
    kernels = [
        (end - 10 - number, end, collective(WORLD, size=size))
        for end, size in zip(ends, sizes, strict=True)
    ]
    return rank(number, *kernels, utc=utc)


JITTER = [0, 7, 3, 11, 5, 2, 13, 1, 9, 4, 12, 6, 2, 10, 0, 8, 13, 5, 1, 7, 3, 12, 6, 9]
STEPS = len(JITTER)


@pytest.mark.parametrize("apart", [0, 170, -350])
@pytest.mark.parametrize(
    ("cut", "other"), [(slice(0, 21), slice(3, 24)), (slice(2, 20), slice(0, 24))]
)
def test_recordings_that_begin_and_end_at_other_times(cut: slice, other: slice, apart: int) -> None:
    """Equal messages every 100 or so; the second clock may be some of them off."""
    ends = [1000 + 100 * step + JITTER[step] for step in range(STEPS)]
    zero, one = exchanges(
        [
            loop(0, ends[cut], [64] * len(ends[cut])),
            loop(1, [end - apart for end in ends[other]], [64] * len(ends[other])),
        ]
    )
    assert zero is not None
    assert one is not None
    first, last = max(cut.start, other.start), min(cut.stop, other.stop)
    mine = [first <= step < last for step in range(STEPS)]
    assert (zero.transfer_ns >= 0).tolist() == mine[cut]
    assert (one.transfer_ns >= 0).tolist() == mine[other]
    assert one.clocks[0].offset_ns == apart
    assert one.clocks[0].residual_ns == 0
    for exchange, count in ((zero, len(ends[cut])), (one, len(ends[other]))):
        left = count - (last - first)
        said = f"{left} of {count} kernels stay unmatched: the recording of another rank begins"
        assert (exchange.reason or "").startswith(said if left else "")
        assert bool(exchange.reason) is bool(left)


def test_a_shift_that_cannot_be_told_is_not_guessed() -> None:
    """Strictly periodic: with any shift the ends are equally far apart."""
    ends = [1000 + 100 * step for step in range(12)]
    zero, _ = exchanges([loop(0, ends, [64] * 12), loop(1, ends[:11], [64] * 11)])
    assert zero is not None
    assert zero.ranks == ()
    # Bytes that differ tell it.
    sizes = [8 << step for step in range(12)]
    zero, _ = exchanges([loop(0, ends, sizes), loop(1, ends[:11], sizes[:11])])
    assert zero is not None
    assert (zero.transfer_ns >= 0).tolist() == [True] * 11 + [False]


def test_kinds_have_the_times_of_those_that_were_matched() -> None:
    """Of ten equal messages of one rank the other has nine."""
    ends = [1000 + 100 * step + JITTER[step] for step in range(10)]
    traces = [loop(0, ends, [64] * 10), loop(1, ends[1:], [64] * 9)]
    (zero,), (one,) = (
        analysis.communication for analysis in api.analyze_together(traces, [Options(), Options()])
    )
    (kind,) = zero.messages
    assert (kind.count, kind.timed, kind.work_ns) == (10, 9, 100)
    # Rank 0 takes 10 for each, rank 1 takes 11.
    assert (kind.transfer_ns, kind.wait_ns) == (90, 0)
    assert (kind.transfer_exposed_ns, kind.wait_exposed_ns) == (90, 0)
    assert kind.late == {"rank 0": 9, "rank 1": 0}
    (kind,) = one.messages
    assert (kind.count, kind.timed, kind.transfer_ns, kind.wait_ns) == (9, 9, 90, 9)


def test_messages_are_listed_by_communicator() -> None:
    traces = [
        rank(0, (100, 200, collective(PAIR)), (300, 400, collective(-2))),
        rank(1, (150, 200, collective(PAIR)), (360, 400, collective(-2))),
    ]
    options = [Options(instances=True)] * 2
    entries: list[Communication] = [
        entry
        for analysis in api.analyze_together(traces, options)
        for entry in analysis.communication
    ]
    found = {kind.communicator: (kind.transfer_ns, kind.wait_ns) for kind in entries[0].messages}
    # Written as NCCL does: 64 bits without a sign.
    assert found == {"0000000000002222": (50, 50), "fffffffffffffffe": (40, 60)}
    assert entries[1].per_message is not None
    assert [one.communicator for one in entries[1].per_message] == [
        "0000000000002222", "fffffffffffffffe",
    ]  # fmt: skip


EDGES = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(EDGES), min_size=1, max_size=6), min_size=1, max_size=4),
    st.lists(st.integers(0, 50), min_size=12, max_size=12),
)
def test_any_exchange_waits_for_the_last_of_its_partners(
    steps: list[list[tuple[int, int]]], delays: list[int]
) -> None:
    """All work that a step has to do takes 100 from when its partners are there."""
    begins = [[1000 * (step + 1) + delays[3 * step + r] for r in range(3)] for step in range(4)]
    partners = [
        [{r, *(a + b - r for a, b in messages if r in (a, b))} for r in range(3)]
        for messages in steps
    ]
    traces = []
    for r in range(3):
        kernels = []
        for step, messages in enumerate(steps):
            calls = [("Send", b) if r == a else ("Recv", a) for a, b in messages if r in (a, b)]
            if not calls:
                continue
            latest = max(begins[step][other] for other in partners[step][r])
            kernels.append((begins[step][r], latest + 100, group(*calls)))
        kernels.append((9000, 9010, collective(WORLD)))
        traces.append(rank(r, *kernels))
    for r, exchange in enumerate(exchanges(traces)):
        mine = [step for step in range(len(steps)) if len(partners[step][r]) > 1]
        found = told(exchange)
        assert [transfer for transfer, _, _ in found] == [100] * len(mine) + [10]
        for step, (_, late, late_ns) in zip(mine, found, strict=False):
            times = {other: begins[step][other] for other in partners[step][r]}
            apart = max(times.values()) - min(times.values())
            assert late_ns == apart
            assert late == -1 if not apart else times[late] == max(times.values())


# Real messages


Span = tuple[int, int]


def paired_naively(traces: list[Trace], clocks: list[int]) -> list[list[int]]:
    """Return, a rank, the transfer time of each kernel in the order of launches.

    Kernel by kernel: what its NCCL call or group sends and receives is queued by sender, receiver
    and communicator. Of two kernels that hold a message the shorter one is what it took, or if one
    of them only sends: what is left of each from when both are there, by `clocks`.
    """
    queues: dict[tuple[str, int, int, int], list[tuple[int, int]]] = {}
    spans: list[list[Span]] = []
    for number, trace in enumerate(traces):
        ops, api, ranges = trace.operations, trace.api, trace.ranges
        assert ops is not None
        assert api is not None
        assert ranges is not None
        calls = [
            (ranges.start_ns[i], ranges.end_ns[i], trace.strings[ranges.name[i]], i)
            for i in range(len(ranges))
            if trace.strings[ranges.name[i]].startswith("nccl")
        ]
        rows = sorted(
            (int(ops.launch[row]), row)
            for row in range(len(ops))
            if trace.strings[ops.name[row]].startswith("ncclDevKernel")
        )
        mine: list[Span] = []
        for launch, row in rows:
            time = api.start_ns[launch]
            place = max(at for at, call in enumerate(calls) if call[0] <= time)
            first = place
            if calls[place][2] == "ncclGroupEnd":
                first = max(at for at in range(place) if calls[at][2] == "ncclGroupStart")
            for _, _, name, i in calls[first : place + 1]:
                if name in ("ncclSend", "ncclRecv"):
                    ends = (number, int(ranges.peer[i]))
                    ends = ends if name == "ncclSend" else ends[::-1]
                    key = (name, int(ranges.communicator[i]), *ends)
                    queues.setdefault(key, []).append((number, len(mine)))
            mine.append((int(ops.start_ns[row]), int(ops.end_ns[row])))
        spans.append(mine)
    partner: dict[tuple[int, int], set[tuple[int, int]]] = {}
    directions: dict[tuple[int, int], set[str]] = {}
    for (name, communicator, source, target), kernels in queues.items():
        if name == "ncclSend":
            receives = queues["ncclRecv", communicator, source, target]
            for sent, received in zip(kernels, receives, strict=True):
                partner.setdefault(sent, set()).add(received)
                partner.setdefault(received, set()).add(sent)
                directions.setdefault(sent, set()).add("out")
                directions.setdefault(received, set()).add("in")
    found = []
    for number, mine in enumerate(spans):
        times = []
        for at, (start, end) in enumerate(mine):
            ((rank, place),) = partner[number, at]
            other_start, other_end = spans[rank][place]
            shorter = min(end - start, other_end - other_start)
            lag = max(0, other_start + clocks[rank] - start - clocks[number])
            both_ways = directions[number, at] == {"in", "out"}
            times.append(shorter if both_ways else max(shorter, end - start - lag))
        found.append(times)
    return found


def test_sends_of_a_real_run_are_matched_with_their_receives() -> None:
    traces = [api.open_trace(samples.path(f"nccl_group_r{number}")) for number in (0, 1)]
    found = exchanges(traces)
    clocks = []
    for trace, exchange in zip(traces, found, strict=True):
        assert exchange is not None
        assert exchange.reason is None
        clocks.append((trace.start_utc_ns or 0) + exchange.clocks[0].offset_ns)
    expected = paired_naively(traces, clocks)
    for trace, exchange, times in zip(traces, found, expected, strict=True):
        assert exchange is not None
        ops = trace.operations
        assert ops is not None
        rows = np.flatnonzero(ops.op_class == CODE["comm"])
        rows = rows[np.argsort(ops.launch[rows])]
        assert len(rows) == 900
        assert exchange.transfer_ns[rows].tolist() == times
    # On one host the reports' times of day are the same to 2 ns: a receive by itself ends 3.2 µs
    # after its send, in either direction.
    assert found[1] is not None
    assert found[1].clocks[0].offset_ns == -2
    assert found[1].clocks[0].residual_ns == 3243


def test_messages_of_several_communicators_of_a_real_run() -> None:
    ranks = gpuscope.load_ranks(*(samples.path(f"nccl_several_r{number}") for number in (0, 1)))
    frame = ranks.messages
    assert set(frame["operation"]) == {"ncclAllReduce"}
    assert set(frame["size_bytes"]) == {8 << 20}
    # Eight in each of three passes on the whole communicator, four on each of two others.
    counts = frame.groupby(["communicator", "rank"])["count"].sum().unstack()
    assert sorted(counts[0].tolist()) == [12, 12, 24]
    assert counts[0].tolist() == counts[1].tolist()
    transfers = frame.groupby(["communicator", "rank"])["transfer_ns"].sum().unstack()
    assert transfers[0].tolist() == transfers[1].tolist()
    several = ranks[0].overlap("several").scope
    assert several.concurrency.classes["comm"].peak == 2


def without_edges(trace: Trace, first: int, last: int) -> Trace:
    """Return the trace as if it had begun and ended some messages later and earlier."""
    ops = trace.operations
    assert ops is not None
    rows = np.flatnonzero(ops.op_class == CODE["comm"])
    rows = rows[np.argsort(ops.launch[rows])]
    kept = np.ones(len(ops), np.bool_)
    kept[rows[:first]] = kept[rows[len(rows) - last :]] = False
    return dataclasses.replace(trace, operations=ops.take(kept))


@pytest.mark.parametrize("name", ["jacobi_nccl", "nccl_group"])
@pytest.mark.parametrize(
    ("one", "other"), [((0, 0), (3, 0)), ((5, 0), (0, 4)), ((2, 2), (2, 2)), ((0, 3), (3, 0))]
)
def test_real_ranks_that_were_not_recorded_over_the_same_time(
    name: str, one: tuple[int, int], other: tuple[int, int]
) -> None:
    """Also where both have equally many kernels, though not the same."""
    traces = [api.open_trace(samples.path(f"{name}_r{number}")) for number in (0, 1)]
    cut = [without_edges(trace, *edges) for trace, edges in zip(traces, (one, other), strict=True)]
    (whole, _), (found, _) = exchanges(traces), exchanges(cut)
    assert whole is not None
    assert found is not None
    times: list[dict[int, int]] = []
    for trace, exchange in ((traces[0], whole), (cut[0], found)):
        ops = trace.operations
        assert ops is not None
        rows = np.flatnonzero(exchange.transfer_ns >= 0)
        starts, transfers = ops.start_ns[rows].tolist(), exchange.transfer_ns[rows].tolist()
        times.append(dict(zip(starts, transfers, strict=True)))
    of_whole, of_found = times
    lost = max(one[0], other[0]) + max(one[1], other[1])
    assert len(of_found) == len(of_whole) - lost
    # The clocks come out a little differently with fewer kernels.
    assert all(abs(time - of_whole[start]) < 100 for start, time in of_found.items())
