"""Phases of ranges that communicate, with times written out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.model.result import Phases
from gpuscope.model.trace import Trace
from gpuscope.phases import PACKS
from gpuscope.scopes import behind_gates
from tests.make_trace import make_trace

MINE = tuple(each for each in ANALYZERS if each.name in {"ranges", "phases"})


def phases(trace: Trace, **options: Any) -> Phases | None:
    (found,) = run_all(trace, MINE, Options(**options)).ranges_named("step")
    return found.scope.phases


def test_a_transfer_is_hidden_where_a_kernel_computes_not_where_one_packs() -> None:
    trace = make_trace(
        kernels=[
            (0, 100, "s1", {"name": "jacobi_step"}),
            (90, 110, "s2", {"name": "jacobi_pack"}),
        ],
        d2h=[(80, 120, "s3")],  # 20 under the step, 10 under packing alone, 10 under nothing
        h2d=[(110, 130, "s4", {"launch": 50})],
        ranges=[("step", 0, 100)],
        mpi=[("MPI_Waitall", 95, 99)],
    )
    assert phases(trace) == Phases(
        compute_ns=100,
        pack_ns=20,
        transfer_ns=50,  # 80 to 130: both directions at once count once
        transfer_hidden_ns=20,
        transfer_exposed_ns=30,
        mpi_ns=4,
        mpi_hidden_ns=4,
    )


def test_a_kernel_that_computes_and_communicates_hides_nothing() -> None:
    trace = make_trace(
        kernels=[(0, 10, "s1")],
        fused=[(10, 50, "s1")],
        p2p=[(5, 40, "s2", {"launch": 1})],
        mpi=[("MPI_Wait", 8, 30)],
        ranges=[("step", 0, 60)],
    )
    found = phases(trace)
    assert found is not None
    assert (found.compute_ns, found.transfer_hidden_ns, found.mpi_hidden_ns) == (50, 5, 2)


def test_instances_are_summed_and_each_is_a_timeline_of_its_own() -> None:
    trace = make_trace(
        kernels=[(0, 50, "s1"), (100, 150, "s1")],
        # The second's copy runs under no kernel of its own instance.
        d2h=[(40, 60, "s2"), (120, 130, "s2", {"launch": 10})],
        p2p=[(140, 160, "s3", {"launch": 105})],
        ranges=[("step", 0, 60), ("step", 100, 160)],
    )
    found = phases(trace)
    assert found is not None
    assert (found.compute_ns, found.transfer_ns) == (100, 20 + 10 + 20)
    assert found.transfer_hidden_ns == 10 + 0 + 10
    assert found.hidden_ratio == 0.4


def test_a_communication_kernel_counts_from_where_its_data_moved() -> None:
    trace = make_trace(kernels=[(0, 70, "s1")], comm=[(10, 90, "s2")], ranges=[("step", 0, 100)])
    whole = phases(trace)
    assert whole is not None
    assert (whole.transfer_ns, whole.transfer_hidden_ns) == (80, 60)
    transfer_ns = np.array([-1, 30])  # of the kernel, and of the communication
    moved = phases(trace, transfer_ns=transfer_ns)
    assert moved is not None
    assert (moved.transfer_ns, moved.transfer_hidden_ns) == (30, 10)


def test_what_communicates_with_nobody_has_no_phases() -> None:
    trace = make_trace(kernels=[(0, 50, "s1")], h2d=[(10, 30, "s2")], ranges=[("step", 0, 100)])
    assert phases(trace) is None


def test_kernels_that_pack_are_told_by_their_name() -> None:
    for name in ("jacobi_pack", "unpack_halo", "PackRows", "void ns::pack<float>", "halo::Unpack"):
        assert PACKS.search(name), name
    for name in ("compact", "stencil", "backpack"):
        assert not PACKS.search(name), name


def test_kernels_of_nvshmem_that_wait_are_no_transfers() -> None:
    wait = {"name": "nvshmemi_signal_wait_until_on_stream_kernel"}
    trace = make_trace(
        kernels=[(0, 70, "s1")],
        p2p=[(10, 30, "s2")],
        comm=[(30, 90, "s2", wait)],
        ranges=[("step", 0, 100)],
    )
    found = phases(trace)
    assert found is not None
    assert (found.compute_ns, found.transfer_ns, found.transfer_hidden_ns) == (70, 20, 20)


def test_what_the_ranks_wait_for_each_other_behind_a_start_gate_is_no_time_in_mpi() -> None:
    """A barrier that reaches out of the gate neither; other calls count then, and other barriers.

    Gates of other processes say nothing.
    """
    trace = make_trace(
        gate=[(0, 50, "s9")],
        kernels=[(60, 160, "s1")],
        p2p=[(70, 90, "s2")],
        mpi=[
            ("MPI_Barrier", 10, 40),
            ("MPI_Barrier", 44, 61),
            ("MPI_Wait", 45, 62),
            ("MPI_Waitall", 80, 85),
            ("MPI_Barrier", 100, 103),
        ],
        ranges=[("step", 5, 170)],
    )
    found = phases(trace)
    assert found is not None
    assert (found.mpi_ns, found.mpi_hidden_ns) == (17 + 5 + 3, 2 + 5 + 3)
    assert trace.mpi is not None
    assert behind_gates(trace, trace.mpi).tolist() == [True, True, False, False, False]
    elsewhere = dataclasses.replace(trace.mpi, process=trace.mpi.process + 1)
    assert not behind_gates(trace, elsewhere).any()
