"""The stencil by NCCL and NVSHMEM on one GPU: a rank alone exchanges its edges with itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.gpu.conftest import Run

pytestmark = [pytest.mark.gpu, pytest.mark.mpi, pytest.mark.nsys]
needs_nvshmem = pytest.mark.skipif(
    importlib.util.find_spec("nvshmem") is None, reason="needs nvshmem4py"
)

ALONE = ("--ranks", "1")
SIZES = ("--rows", "64", "--columns", "262144", "--reps", "3")
SMALL = ("--rows", "341", "--columns", "4099", "--steps", "10", "--reps", "2")
VOID = (0, 5)
"""The power cap may hold the GPU's clock down: the times are void then, not wrong."""


@pytest.mark.parametrize(
    "words",
    [
        ("jacobi-nccl",),
        ("jacobi-nccl-overlap",),
        ("jacobi-nccl-overlap", "--graph"),
        ("jacobi-nccl-overlap", "--twin", "same-stream"),
        ("jacobi-nccl-overlap", "--twin", "event-chain"),
        pytest.param(("jacobi-nvshmem",), marks=needs_nvshmem),
        pytest.param(("jacobi-nvshmem", "--in-kernel"), marks=needs_nvshmem),
    ],
    ids=" ".join,
)
def test_the_trace_shows_what_the_schedule_does(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--nsys", *ALONE, *words, *SIZES, codes=VOID)
    assert run.met


@pytest.mark.parametrize(
    "words",
    [
        ("jacobi-nccl-overlap",),
        pytest.param(("jacobi-nvshmem",), marks=needs_nvshmem),
        pytest.param(("jacobi-nvshmem", "--in-kernel"), marks=needs_nvshmem),
    ],
    ids=" ".join,
)
def test_the_norm_on_the_way_ends_it_and_one_changed_element_is_caught(
    words: tuple[str, ...], run_ranks: Callable[..., Run]
) -> None:
    run = run_ranks("--untraced", *ALONE, *words, *SMALL, "--tolerance", "25", codes=VOID)
    assert run.untraced["figures"]["solve_steps"] > 1
    run = run_ranks("--untraced", *ALONE, *words, *SMALL, "--twin", "corrupt-element")
    assert "caught, as it must be (wrong data: 1 of " in run.done.stdout
