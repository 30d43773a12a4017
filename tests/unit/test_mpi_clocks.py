"""The clocks of ranks without communication kernels, by the collectives of MPI."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.figures.timeline import Timeline
from gpuscope.model.exchange import Clock
from gpuscope.model.trace import Process, Trace
from gpuscope.mpi_clocks import clocks
from gpuscope.report import ranks, text
from tests.make_trace import make_trace

FIRST = Clock(0, 0, 0, 2)


def rank(number: int, *calls: tuple[Any, ...], utc: int | None = 0) -> Trace:
    trace = make_trace(kernels=[(0, 1000, "s1")], mpi=list(calls))
    process = Process(100 + number, "made", number)
    return dataclasses.replace(trace, start_utc_ns=utc, processes=(process,))


def barriers(*spans: tuple[int, int]) -> list[tuple[Any, ...]]:
    return [("MPI_Barrier", *span) for span in spans]


ZERO = rank(0, *barriers((100, 200), (500, 540)))


@pytest.mark.parametrize(
    ("spans", "offset_ns", "open_ns"),
    [
        # The second barrier leaves -35 to 30, the first nothing that is nearer.
        (((150, 205), (510, 535)), 0, 35),
        # A clock that is 1000 behind: 965 to 1030.
        (((-850, -795), (-490, -465)), 997, 33),
        (((1150, 1205), (1510, 1535)), -1003, 33),
    ],
)
def test_times_of_day_stay_within_what_barriers_allow(
    spans: tuple[tuple[int, int], ...], offset_ns: int, open_ns: int
) -> None:
    one = rank(1, *barriers(*spans))
    assert clocks([ZERO, one]) == [FIRST, Clock(offset_ns, open_ns, open_ns, 2)]


def test_a_rank_that_left_before_another_entered_was_in_another_barrier() -> None:
    # By the first barrier the clock is 1000 ahead, by the second it is right.
    assert clocks([ZERO, rank(1, *barriers((1100, 1200), (500, 540)))]) == [None, None]


@pytest.mark.parametrize(
    "other",
    [
        rank(1, *barriers((100, 200))),
        rank(1, ("MPI_Barrier", 100, 200), ("MPI_Allreduce", 500, 540)),
        rank(1, ("MPI_Send", 100, 200), ("MPI_Bcast", 500, 540)),
        rank(1),
        rank(1, *barriers((100, 200), (500, 540)), utc=None),
    ],
)
def test_other_collectives_or_none_tell_nothing(other: Trace) -> None:
    assert clocks([ZERO, other]) == [None, None]


def test_collectives_of_another_communicator_are_left_out() -> None:
    def of_two(number: int, *others: tuple[Any, ...]) -> Trace:
        trace = rank(number, *barriers((100, 200), (500, 540)), *others)
        assert trace.mpi is not None
        subgroup = np.array([trace.strings[name] == "MPI_Allreduce" for name in trace.mpi.name])
        mpi = dataclasses.replace(trace.mpi, communicator=np.where(subgroup, 7, 3))
        return dataclasses.replace(trace, mpi=mpi)

    zero = of_two(0, ("MPI_Allreduce", 300, 310))
    assert clocks([zero, of_two(1)]) == [FIRST, Clock(0, 40, 40, 2)]


def test_one_collective_fits_always_and_tells_nothing() -> None:
    assert clocks([rank(0, *barriers((100, 200))), rank(1, *barriers((900, 950)))]) == [None, None]


def test_ranks_of_one_run_are_set_right_for_their_messages_and_on_the_page() -> None:
    late = rank(1, *barriers((-850, -795), (-490, -465)))
    zero, one = api.analyze_together([ZERO, late], [Options(), Options()])
    assert [entry.clock for entry in zero.communication] == [FIRST]
    assert [entry.clock for entry in one.communication] == [Clock(997, 33, 33, 2)]
    note = Timeline([ZERO, late]).alignment.note
    assert "MPI calls that end together (2, to within 33" in note
    # Two traces of one rank are no two ranks.
    again = dataclasses.replace(late, processes=ZERO.processes)
    same, _ = api.analyze_together([ZERO, again], [Options(), Options()])
    assert [entry.clock for entry in same.communication] == [None]


def test_ranks_that_only_call_mpi_have_clocks_and_times_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def on_host(trace: Trace) -> Trace:
        return dataclasses.replace(trace, operations=None, devices=())

    late = rank(1, *barriers((350, 405), (710, 735)))
    for traces in ([on_host(ZERO), on_host(late)], [ZERO, on_host(late)]):
        zero, one = api.analyze_together(traces, [Options(), Options()])
        assert [entry.clock for entry in zero.communication] == [FIRST]
        (entry,) = one.communication
        assert (entry.rank, entry.device, entry.messages) == (1, None, ())
        assert entry.clock == Clock(-203, 33, 33, 2)
        (calls,) = entry.mpi
        assert (calls.name, calls.count, calls.work_ns) == ("MPI_Barrier", 2, 80)
        # Without a GPU none was idle.
        assert (calls.gpu_busy_ns, calls.gpu_idle_ns) == (None, None)
        text.render_analysis(one, Console(width=120))
        said = capsys.readouterr().out
        assert "MPI of rank 1, no GPU work, clock moved by -203 ns (to within 33 ns)" in said
        assert "MPI_Barrier ×2  80 ns on the host\n" in said
        assert ranks.are_ranks([zero, one])
    many = rank(0, *((f"MPI_{letter}", 100 + at, 200) for at, letter in enumerate("abcdefg")))
    (several,) = api.analyze_together([on_host(many)], [Options()])
    text.render_analysis(several, Console(width=120))
    assert "2 more kinds of call: --json lists them" in capsys.readouterr().out
    # Ranks that were in MPI at other times are not of one run.
    after = on_host(rank(1, *barriers((950, 1005), (1310, 1335))))
    _, one = api.analyze_together([on_host(ZERO), after], [Options(), Options()])
    assert [entry.clock for entry in one.communication] == [None]


@pytest.mark.parametrize("name", ["nccl_group", "nccl_several", "jacobi_overlap"])
def test_collectives_and_kernels_agree_where_there_are_both(name: str) -> None:
    paths = [samples.path(f"{name}_r{number}") for number in (0, 1)]
    analyses = api.analyze(paths)
    (by_kernels,) = (entry.clock for entry in analyses[1].communication)
    by_mpi = clocks([api.open_trace(path) for path in paths])[1]
    assert by_kernels is not None
    assert by_mpi is not None
    assert by_kernels.matched != by_mpi.matched
    assert abs(by_kernels.offset_ns - by_mpi.offset_ns) <= by_mpi.worst_ns + by_kernels.residual_ns
