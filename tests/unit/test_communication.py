"""Messages matched over ranks: who waited, on which clock, and what NCCL was asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.communication import exchanges
from gpuscope.model.exchange import Clock
from gpuscope.model.result import Communication
from gpuscope.model.tables import STAGED
from gpuscope.model.trace import Process, Trace
from tests.make_export import Export
from tests.make_trace import make_trace


def rank(number: int | None, comm: list[Any], utc: int = 0, **more: Any) -> Trace:
    trace = make_trace(comm=[(s, e, "s1", {"name": "ncclKernel", **x}) for s, e, x in comm], **more)
    process = Process(100 + (number or 0), "made", number)
    return dataclasses.replace(trace, start_utc_ns=utc, processes=(process,))


def communication(*traces: Trace) -> list[Communication]:
    options = [Options() for _ in traces]
    analyses = api.analyze_together(traces, options)
    return [entry for analysis in analyses for entry in analysis.communication]


def test_the_rank_that_arrives_last_makes_the_others_wait() -> None:
    first = rank(0, [(0, 100, {}), (200, 230, {})], kernels=[(50, 95, "s2")])
    second = rank(1, [(80, 100, {}), (190, 230, {})])
    zero, one = communication(first, second)
    assert (zero.ranks, zero.estimated, zero.reason) == (("rank 0", "rank 1"), False, None)
    (kind,) = zero.messages
    assert (kind.count, kind.work_ns, kind.transfer_ns, kind.wait_ns) == (2, 130, 50, 80)
    # The kernel lies under 30 ns of waiting and 15 of the transfer.
    assert (kind.exposed_ns, kind.transfer_exposed_ns, kind.wait_exposed_ns) == (85, 35, 50)
    assert kind.late == {"rank 0": 1, "rank 1": 1}
    worst = zero.worst[0]
    assert (worst.index, worst.wait_ns, worst.late, worst.late_ns) == (0, 80, "rank 1", 80)
    assert [message.wait_ns for message in one.worst] == [10, 0]


def test_every_message_one_by_one_where_asked_for() -> None:
    traces = [
        rank(0, [(0, 100, {"launch": 1}), (200, 230, {"launch": 2})]),
        rank(1, [(80, 100, {"launch": 1}), (190, 230, {"launch": 2})]),
    ]
    options = [Options(instances=True)] * 2
    zero, one = (each.communication[0] for each in api.analyze_together(traces, options))
    assert zero.per_message is not None
    assert one.per_message is not None
    found = [(m.index, m.transfer_ns, m.wait_ns, m.late, m.late_ns) for m in zero.per_message]
    assert found == [(0, 20, 80, "rank 1", 80), (1, 30, 0, "rank 0", 10)]
    assert [m.wait_ns for m in one.per_message] == [0, 10]
    assert communication(*traces)[0].per_message is None


def test_the_ends_of_matched_kernels_bring_the_clocks_together() -> None:
    first = rank(0, [(0, 100, {}), (200, 300, {}), (400, 500, {})], utc=1_000)
    # Its clock is 40 behind, and its ends scatter by 2.
    second = rank(1, [(50, 158, {}), (200, 360, {}), (400, 562, {})], utc=900)
    zero, one = communication(first, second)
    assert zero.clock == Clock(offset_ns=0, residual_ns=0, worst_ns=0, matched=3)
    assert one.clock == Clock(offset_ns=40, residual_ns=2, worst_ns=2, matched=3)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ([(0, 100, {})], "differ in number"),
        ([(0, 100, {}), (200, 230, {"name": "ncclOther"})], "differ in number or in name"),
    ],
)
def test_ranks_that_do_not_fit_are_not_matched(other: list[Any], reason: str) -> None:
    first = rank(0, [(0, 100, {}), (200, 230, {})])
    zero, _ = communication(first, rank(1, other))
    assert zero.ranks == ()
    assert zero.reason is not None
    assert reason in zero.reason
    assert zero.messages[0].transfer_ns is None
    assert zero.messages[0].late is None


def test_reports_of_different_runs_are_not_matched() -> None:
    message: list[Any] = [(0, 100, {})]
    zero, _ = communication(rank(0, message), rank(1, message, utc=10**12))
    assert zero.reason == "the reports have no moment in common, or no time of day to tell"


def test_ranks_without_numbers_are_called_by_process_and_device() -> None:
    first = rank(None, [(0, 100, {}), (0, 90, {"device": 1})], devices=2)
    zero, one = communication(first)
    assert zero.ranks == ("GPU 0 of process 100", "GPU 1 of process 100")
    assert (zero.messages[0].wait_ns, one.messages[0].wait_ns) == (10, 0)


def test_equal_processes_of_two_reports_are_told_apart() -> None:
    zero, _ = communication(rank(None, [(0, 100, {})]), rank(None, [(50, 100, {})]))
    assert zero.ranks == (
        "GPU 0 of process 100 of report 1",
        "GPU 0 of process 100 of report 2",
    )
    assert zero.messages[0].late == {zero.ranks[0]: 0, zero.ranks[1]: 1}


def nccl(name: str, start: int, end: int, **more: Any) -> tuple[str, int, int, dict[str, Any]]:
    return (name, start, end, {"domain": "NCCL", **more})


def test_one_rank_estimates_from_equal_operation_and_bytes() -> None:
    calls = [
        nccl("ncclAllReduce", 0, 5, bytes=64),
        nccl("ncclAllReduce", 10, 15, bytes=64),
        nccl("ncclAllReduce", 20, 25, bytes=128),
        nccl("ncclBroadcast", 30, 35, bytes=64, peer=3),
    ]
    comm = [
        (100, 180, {"launch": 1}),
        (200, 230, {"launch": 11}),
        (300, 390, {"launch": 21}),
        (400, 410, {"launch": 31}),
    ]
    (entry,) = communication(rank(0, comm, ranges=calls))
    assert (entry.estimated, entry.reason) == (True, "there is one rank only")
    found = {
        (m.operation, m.size_bytes, m.peer): (m.count, m.transfer_ns, m.wait_ns)
        for m in entry.messages
    }
    assert found == {
        ("ncclAllReduce", 64, None): (2, 60, 50),
        ("ncclAllReduce", 128, None): (1, 90, 0),
        ("ncclBroadcast", 64, 3): (1, 10, 0),
    }


def test_estimates_are_marked_in_the_scopes_too_and_are_no_cause() -> None:
    calls = [nccl("ncclAllReduce", at, at + 5, bytes=64) for at in (0, 10)]
    comm = [(100, 180, {"launch": 1}), (200, 230, {"launch": 11})]
    (analysis,) = api.analyze_together([rank(0, comm, ranges=calls)], [Options()])
    figures = analysis.devices[0].scope.classes["comm"]
    assert (figures.transfer_ns, figures.wait_ns, figures.transfer_estimated) == (60, 50, True)
    assert "comm-skew" in [gone.analyzer for gone in analysis.abstained]


def test_a_kernel_at_the_end_of_a_group_belongs_to_the_calls_in_it() -> None:
    calls = [
        nccl("ncclGroupStart", 0, 1),
        nccl("ncclSend", 2, 3, bytes=10, peer=1),
        nccl("ncclRecv", 4, 5, bytes=20, peer=1),
        nccl("ncclGroupEnd", 6, 9),
        nccl("ncclGroupStart", 10, 11),
        nccl("ncclSend", 12, 13, bytes=10, peer=1),
        nccl("ncclSend", 14, 15, bytes=10, peer=2),
        nccl("ncclGroupEnd", 16, 19),
        nccl("ncclGroupStart", 20, 21),
        nccl("ncclSend", 22, 23, peer=2),
        nccl("ncclGroupEnd", 26, 29),
        ("nccl", 0, 50, {}),
    ]
    launches = (7, 17, 27, 40)
    comm = [(100 * n, 100 * n + 10, {"launch": at}) for n, at in enumerate(launches, start=1)]
    (exchange,) = exchanges([rank(0, comm, ranges=calls)])
    assert exchange is not None
    texts = [exchange.call_texts[call] if call >= 0 else None for call in exchange.calls.tolist()]
    assert texts == ["ncclRecv + ncclSend", "2 ncclSend", "ncclSend", None]
    assert exchange.size_bytes.tolist() == [30, 20, -1, -1]
    assert exchange.peer.tolist() == [1, -1, 2, -1]


def test_a_group_in_a_group_belongs_to_the_outer_one() -> None:
    """A kernel is launched at the end of the outermost. An end without a start is no group."""
    calls = [
        nccl("ncclGroupEnd", 0, 1),
        nccl("ncclGroupStart", 2, 3),
        nccl("ncclAllReduce", 4, 5, bytes=1),
        nccl("ncclGroupStart", 6, 7),
        nccl("ncclSend", 8, 9, bytes=2, peer=1),
        nccl("ncclGroupEnd", 10, 11),
        nccl("ncclAllReduce", 12, 13, bytes=4),
        nccl("ncclGroupEnd", 14, 17),
        nccl("ncclGroupStart", 5, 6, thread="other"),
    ]
    comm = [(100, 110, {"launch": 15}), (200, 210, {"launch": 0})]
    (exchange,) = exchanges([rank(0, comm, ranges=calls)])
    assert exchange is not None
    texts = [exchange.call_texts[call] for call in exchange.calls.tolist()]
    assert texts == ["2 ncclAllReduce + ncclSend", "ncclGroupEnd"]
    assert exchange.size_bytes.tolist() == [7, -1]


def test_calls_of_other_threads_are_others() -> None:
    calls = [nccl("ncclAllReduce", 0, 9, bytes=64, thread="other")]
    (exchange,) = exchanges([rank(0, [(10, 20, {"launch": 1})], ranges=calls)])
    assert exchange is not None
    assert (exchange.calls.tolist(), exchange.transfer_ns.tolist()) == ([-1], [-1])


def test_without_communication_there_is_nothing_to_say() -> None:
    assert exchanges([make_trace(kernels=[(0, 10, "s1")])]) == [None]
    assert communication(make_trace(kernels=[(0, 10, "s1")])) == []


def test_halves_of_a_staged_copy_on_one_gpu_are_no_equal_messages() -> None:
    leg = {"src": 0, "dst": 1, "flags": STAGED}
    trace = make_trace(
        devices=2,
        p2p=[(0, 10, "s1", leg), (10, 20, "s2", {**leg, "bytes": 1000}), (30, 40, "s1", leg)],
    )
    assert trace.operations is not None
    # Both halves come of one call; of the third its other half was not recorded.
    operations = dataclasses.replace(trace.operations, launch=np.array([0, 0, 2], np.int32))
    trace = dataclasses.replace(trace, operations=operations)

    (entry,) = communication(trace)

    assert {(m.operation, m.size_bytes, m.count) for m in entry.messages} == {
        ("copy GPU 0 > GPU 1, to the host", 1000, 1),
        ("copy GPU 0 > GPU 1, from the host", 1000, 1),
        ("copy GPU 0 > GPU 1, to the host", None, 1),
    }


def test_the_shipped_pair_of_ranks() -> None:
    paths = [samples.path(f"jacobi_nccl_r{number}") for number in (0, 1)]
    zero, one = (analysis.communication[0] for analysis in api.analyze(paths))
    assert zero.ranks == one.ranks == ("rank 0", "rank 1")
    assert one.clock is not None
    # The ends of matched kernels agree to 0.3 µs on one host.
    assert one.clock.matched == 50
    assert one.clock.residual_ns < 300
    (mine,), (theirs,) = zero.messages, one.messages
    assert mine.operation == theirs.operation == "2 ncclRecv + 2 ncclSend"
    assert mine.transfer_ns == theirs.transfer_ns
    assert mine.late == {"rank 0": 5, "rank 1": 43}
    assert mine.wait_ns is not None
    assert mine.wait_ns > 2 * (mine.transfer_ns or 0)
    # On the order of the reports nothing depends.
    swapped = api.analyze(paths[::-1])
    assert swapped[1].communication[0].messages == (mine,)


def test_the_shipped_messages_with_their_payloads() -> None:
    trace = gpuscope.load(samples.path("nccl_one"))
    (entry,) = api.analyze_together([trace.raw], [Options()])[0].communication
    assert (entry.estimated, entry.reason) == (True, "there is one rank only")
    # A send and a receive of 1, 4 and 16 MiB, each twice.
    found = {(m.operation, m.size_bytes, m.peer, m.count) for m in entry.messages}
    assert found == {("ncclRecv + ncclSend", 2 * size << 20, 0, 2) for size in (1, 4, 16)}
    assert trace.overlap(category="training").names == ("exchange",)


def test_time_in_mpi_while_the_gpu_is_busy_and_idle() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s1", {"launch": 0}), (20, 30, "s1", {"launch": 15})],
        mpi=[
            ("MPI_Send", 5, 12),
            ("MPI_Recv", 8, 25, {"thread": "other"}),
            ("MPI_Barrier", 28, 40),
        ],
        ranges=[("step", 0, 6)],
    )
    analysis = api.analyze_trace(trace)
    mpi = analysis.devices[0].scope.mpi
    assert mpi is not None
    assert (mpi.count, mpi.busy_ns, mpi.gpu_busy_ns, mpi.gpu_idle_ns) == (3, 32, 12, 20)
    (entry,) = analysis.ranges
    assert entry.scope.mpi is not None
    # Of the range's thread, and of work launched anywhere.
    assert (entry.scope.mpi.busy_ns, entry.scope.mpi.gpu_busy_ns) == (7, 5)


def test_mpi_calls_by_name_against_the_gpu() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s1"), (20, 30, "s1")],
        mpi=[("MPI_Send", 5, 12), ("MPI_Send", 25, 45), ("MPI_Barrier", 12, 19)],
    )
    (entry,) = communication(trace)
    assert (entry.messages, entry.worst) == ((), ())
    found = [
        (call.name, call.count, call.size_bytes, call.work_ns, call.gpu_busy_ns, call.gpu_idle_ns)
        for call in entry.mpi
    ]
    assert found == [("MPI_Send", 2, None, 27, 10, 17), ("MPI_Barrier", 1, None, 7, 0, 7)]
    # In a window those that lie in it.
    options = [Options(window_ns=(11, 30))]
    (entry,) = api.analyze_together([trace], options)[0].communication
    assert [call.name for call in entry.mpi] == ["MPI_Barrier"]


def test_a_kernel_that_waits_for_a_signal_has_no_partner() -> None:
    wait = {"name": "nvshmemi_signal_wait_until_on_stream_kernel"}
    first = rank(0, [(0, 100, wait), (200, 230, {})])
    second = rank(1, [(80, 100, wait), (190, 230, {})])
    zero, _ = communication(first, second)
    # Slowest first: of the wait nothing is known but how long it took.
    found = [(kind.work_ns, kind.transfer_ns, kind.wait_ns) for kind in zero.messages]
    assert found == [(100, None, None), (30, 30, 0)]
    assert exchanges([rank(0, [(0, 9, wait)]), rank(1, [(5, 9, wait)])]) == [None, None]


def test_mpi_calls_behind_a_start_gate_are_not_listed() -> None:
    trace = make_trace(
        gate=[(0, 20, "s9"), (50, 70, "s9")],
        kernels=[(30, 40, "s1")],
        mpi=[
            ("MPI_Barrier", 5, 15),
            ("MPI_Barrier", 42, 45),
            ("MPI_Barrier", 45, 45),
            ("MPI_Barrier", 52, 60),
        ],
    )
    (entry,) = communication(trace)
    assert [(call.name, call.count, call.work_ns) for call in entry.mpi] == [("MPI_Barrier", 2, 3)]


STRETCH = st.tuples(st.integers(0, 60), st.integers(0, 20))


@settings(max_examples=100)
@given(
    st.lists(STRETCH, min_size=1, max_size=6),
    st.lists(STRETCH, min_size=1, max_size=6),
    st.lists(STRETCH, max_size=5),
)
def test_sums_of_messages_and_of_mpi_equal_the_naive_ones(
    messages: list[tuple[int, int]], calls: list[tuple[int, int]], kernels: list[tuple[int, int]]
) -> None:
    def marked(rows: list[tuple[int, int]]) -> set[int]:
        return {at for start, size in rows for at in range(start, start + size)}

    first = rank(
        0,
        [(s, s + n, {"launch": i}) for i, (s, n) in enumerate(messages)],
        kernels=[(s, s + n, "s2") for s, n in kernels],
        mpi=[("MPI_Send", s, s + n) for s, n in calls],
    )
    # The other rank arrives later at every message, and ends when the first does.
    late = [n // 2 for _, n in messages]
    second = rank(
        1,
        [
            (s + n - d, s + n, {"launch": i})
            for i, ((s, n), d) in enumerate(zip(messages, late, strict=True))
        ],
        memset=[(0, 90, "s9")],
    )
    analyses = api.analyze_together([first, second], [Options(), Options()])
    mpi = analyses[0].devices[0].scope.mpi
    assert mpi is not None
    busy = marked(messages) | marked(kernels)
    assert (mpi.count, mpi.busy_ns, mpi.gpu_busy_ns) == (
        len(calls),
        len(marked(calls)),
        len(marked(calls) & busy),
    )
    (entry,) = analyses[0].communication
    if not entry.ranks:  # all of it has no length, so that the reports share no moment
        return
    (kind,) = entry.messages
    compute = marked(kernels)
    exposed = sum(len(set(range(s, s + n)) - compute) for s, n in messages)
    moving = sum(
        len(set(range(s + n - d, s + n)) - compute)
        for (s, n), d in zip(messages, late, strict=True)
    )
    assert (kind.count, kind.work_ns, kind.exposed_ns) == (
        len(messages),
        sum(n for _, n in messages),
        exposed,
    )
    assert (kind.transfer_ns, kind.transfer_exposed_ns) == (sum(late), moving)
    assert kind.wait_exposed_ns == exposed - moving


def test_one_rank_named_twice_is_no_pair_of_ranks() -> None:
    trace = api.open_trace(samples.path("jacobi_nccl_r0"))
    for exchange in exchanges([trace, trace]):
        assert exchange is not None
        assert exchange.ranks == ()
        assert exchange.reason is not None
        assert "same rank" in exchange.reason


def test_copies_between_gpus_are_messages() -> None:
    there, back = {"src": 0, "dst": 1, "bytes": 64}, {"src": 1, "dst": 0, "bytes": 64}
    trace = make_trace(
        p2p=[(0, 10, "s1", there), (20, 40, "s1", there), (40, 50, "s1", back)],
        kernels=[(25, 60, "s2")],
    )
    (entry,) = communication(trace)
    assert (entry.ranks, entry.reason, entry.estimated) == ((), None, False)
    found = {
        (m.operation, m.size_bytes): (m.count, m.work_ns, m.exposed_ns, m.transfer_ns, m.wait_ns)
        for m in entry.messages
    }
    # The second copy lies under the kernel from 25 on, the third whole.
    assert found == {
        ("copy GPU 0 > GPU 1", 64): (2, 30, 15, 30, 0),
        ("copy GPU 1 > GPU 0", 64): (1, 10, 0, 10, 0),
    }
    assert [message.late for message in entry.worst] == [None, None, None]


def test_either_half_of_a_copy_that_the_driver_stages_has_all_of_its_bytes(tmp_path: Path) -> None:
    entries = communication(api.open_trace(samples.path("p2p_driver_run")))
    found = [{(m.operation, m.size_bytes): m.count for m in entry.messages} for entry in entries]
    one_way, back = "copy GPU 0 > GPU 1", "copy GPU 1 > GPU 0"
    to, of = ", to the host", ", from the host"
    assert found == [
        {(one_way + to, 64): 150, (back + of, 64): 150},
        {(back + to, 64): 150, (one_way + of, 64): 150},
    ]
    with Export(tmp_path / "calls_missing.sqlite") as export:
        legs = {"srcKind": 2, "dstKind": 2, "bytes": 4096, "srcDeviceId": 0, "dstDeviceId": 1}
        export.operation("MEMCPY", 0, 10, copyKind=2, **legs)
        export.operation("MEMCPY", 5, 15, copyKind=1, deviceId=1, **legs)
    there, here = communication(api.open_trace(tmp_path / "calls_missing.sqlite"))
    assert [(m.operation, m.size_bytes) for m in there.messages] == [(one_way + to, None)]
    assert [(m.operation, m.size_bytes) for m in here.messages] == [(one_way + of, 4096)]


def test_copies_beside_matched_kernels_wait_for_nobody() -> None:
    first = rank(0, [(0, 100, {})], p2p=[(200, 210, "s3", {"src": 0, "dst": 1, "bytes": 8})])
    zero, _ = communication(first, rank(1, [(50, 100, {})]))
    kernel, copy = zero.messages
    assert (kernel.transfer_ns, kernel.wait_ns, kernel.late) == (50, 50, {"rank 0": 0, "rank 1": 1})
    assert (copy.operation, copy.transfer_ns, copy.wait_ns, copy.late) == (
        "copy GPU 0 > GPU 1", 10, 0, None,
    )  # fmt: skip
