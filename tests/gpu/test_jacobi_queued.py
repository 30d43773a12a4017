"""The stencil by NCCL and NVSHMEM on two GPUs for real: what is hidden, by trace and by time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.conftest import Run, copy_without

pytestmark = [pytest.mark.multigpu, pytest.mark.mpi, pytest.mark.nsys]
needs_nvshmem = pytest.mark.skipif(
    importlib.util.find_spec("nvshmem") is None, reason="needs nvshmem4py"
)

SIZES = ("--rows", "352", "--columns", "262144", "--reps", "5")
SMALL = ("--rows", "341", "--columns", "4099", "--steps", "10", "--reps", "2")
SKEW = ("--skew-us", "1000")
"""Much longer than an exchange: the streams of a rank then pass each other often, if they can."""
VOID = (0, 5)
"""The power cap may hold a GPU's clock down: the times are void then, not wrong."""


@pytest.mark.parametrize(
    "words",
    [
        ("jacobi-nccl-overlap",),
        ("jacobi-nccl-overlap", "--graph"),
        pytest.param(("jacobi-nvshmem",), marks=needs_nvshmem),
    ],
    ids=" ".join,
)
def test_the_exchange_hides_under_the_inner_rows(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--nsys", *words, *SIZES, codes=VOID)
    assert run.met
    figures = run.untraced["figures"]
    assert figures["t_step_ns"] < 1.25 * figures["t_lb_ns"]
    assert figures["t_step_ns"] < figures["t_comp_ns"] + 0.6 * figures["t_comm_ns"]


@pytest.mark.parametrize(
    "words",
    [
        ("jacobi-nccl",),
        ("jacobi-nccl-overlap", "--twin", "same-stream"),
        ("jacobi-nccl-overlap", "--twin", "event-chain"),
        pytest.param(("jacobi-nvshmem", "--twin", "barrier"), marks=needs_nvshmem),
    ],
    ids=" ".join,
)
def test_without_the_schedule_nothing_hides(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--nsys", *words, *SIZES, codes=VOID)
    assert run.met
    assert run.untraced["figures"]["omb_overlap_ratio"] < 0.2


def test_a_graph_without_the_priorities_of_its_streams_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, run_ranks: Callable[..., Run]
) -> None:
    monkeypatch.setenv("CUDA_GRAPHS_USE_NODE_PRIORITY", "0")  # against what the program asks for
    run = run_ranks("--nsys", "jacobi-nccl-overlap", "--graph", *SIZES, codes=(4,))
    assert run.untraced["figures"]["omb_overlap_ratio"] < 0.2


@needs_nvshmem
def test_what_kernels_put_cannot_be_observed_but_hides_by_time(
    run_ranks: Callable[..., Run],
) -> None:
    run = run_ranks("--nsys", "jacobi-nvshmem", "--in-kernel", *SIZES, codes=VOID)
    assert "inconclusive (not observable)" in run.done.stdout
    figures = run.untraced["figures"]
    assert figures["t_step_ns"] < figures["t_comp_ns"] + 0.6 * figures["t_comm_ns"]


each_variant = pytest.mark.parametrize(
    "words",
    [
        ("jacobi-nccl",),
        ("jacobi-nccl-overlap",),
        ("jacobi-nccl-overlap", "--graph"),
        pytest.param(("jacobi-nvshmem",), marks=needs_nvshmem),
        pytest.param(("jacobi-nvshmem", "--in-kernel"), marks=needs_nvshmem),
    ],
    ids=" ".join,
)
"""Of a test without times."""


@each_variant
def test_one_changed_element_is_caught(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--untraced", *words, *SMALL, "--twin", "corrupt-element")
    assert "caught, as it must be (wrong data: 1 of " in run.done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("jacobi-nccl",),
        ("jacobi-nccl-overlap",),
        pytest.param(("jacobi-nvshmem",), marks=needs_nvshmem),
        pytest.param(("jacobi-nvshmem", "--in-kernel"), marks=needs_nvshmem),
    ],
    ids=" ".join,
)
def test_ranks_stop_where_one_gpu_stops(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--untraced", *words, *SMALL, "--tolerance", "25", codes=VOID)
    assert run.untraced["figures"]["solve_steps"] > 1


@each_variant
def test_skewed_ranks_change_nothing(words: tuple[str, ...], run_ranks: Callable[..., Run]) -> None:
    run_ranks("--untraced", *words, *SMALL, *SKEW, codes=VOID)


STEPS = "_harness/queued.py"
EDGES_FOR_INNER = STEPS, 12 * " " + "self.high.wait_event(self.inner_done)"
INNER_FOR_EDGES = STEPS, "low.wait_event(self.edges_done)"
LAST_NORM = STEPS, "\n" + 8 * " " + "self.high.wait_event(self.inner_done)"
LOOK = STEPS, "self.looked_at.synchronize()"
SIGNALS = "jacobi_nvshmem.py", "self.heap.wait(target.mine, self.value, stream)"
LONG_GRAPH = ("--graph", "--steps", "50", "--norm-every", "25")
"""A graph has the same delays in each launch: the more steps, the surer do streams pass each other.
"""


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        pytest.param(words, left_out, marks=marks, id=f"{' '.join(words)} {name}")
        for words, marks, waits in (
            (("jacobi-nccl",), (), {"look": LOOK}),
            (
                ("jacobi-nccl-overlap",),
                (),
                {
                    "edges": EDGES_FOR_INNER,
                    "inner": INNER_FOR_EDGES,
                    "last-norm": LAST_NORM,
                    "look": LOOK,
                },
            ),
            (("jacobi-nccl-overlap", *LONG_GRAPH), (), {"edges": EDGES_FOR_INNER}),
            (
                ("jacobi-nvshmem",),
                needs_nvshmem,
                {"edges": EDGES_FOR_INNER, "inner": INNER_FOR_EDGES, "signals": SIGNALS},
            ),
            (("jacobi-nvshmem", "--in-kernel"), needs_nvshmem, {"signals": SIGNALS}),
        )
        for name, left_out in waits.items()
    ],
)
def test_a_wait_left_out_of_a_copy_of_the_code_is_caught(
    words: tuple[str, ...],
    left_out: tuple[str, str],
    tmp_path: Path,
    run_ranks: Callable[..., Run],
) -> None:
    file, wait = left_out
    tree = copy_without(wait, file, tmp_path / "tree")
    name, *options = words
    run = run_ranks("--untraced", name, *SMALL, *SKEW, *options, codes=(1,), tree=tree)
    assert "wrong data: " in run.done.stdout + run.done.stderr
