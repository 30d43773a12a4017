"""NVSHMEM on two GPUs for real: transfers hide beside a kernel, behind a barrier they do not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.gpu.conftest import Run

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.mpi,
    pytest.mark.nsys,
    pytest.mark.skipif(importlib.util.find_spec("nvshmem") is None, reason="needs nvshmem4py"),
]

WAYS = ("put", "get", "put_signal")


def test_transfers_hide_beside_a_kernel_and_are_no_faster_than_the_link(
    run_ranks: Callable[..., Run],
) -> None:
    run = run_ranks("--nsys", "nvshmem", "--reps", "5")
    for quantity in run.untraced["quantities"]:
        if quantity["unit"] == "bytes/s":
            assert 0.7 < quantity["value"] / quantity["limit"] <= 1, quantity
    figures = run.untraced["figures"]
    assert all(figures[f"{way}_speedup"] > 1.5 for way in WAYS), figures
    assert run.met


def test_behind_a_barrier_nothing_hides(run_ranks: Callable[..., Run]) -> None:
    run = run_ranks("--nsys", "nvshmem", "--twin", "barrier-first", "--reps", "5")
    figures = run.untraced["figures"]
    assert all(figures[f"{way}_speedup"] < 1.1 for way in WAYS), figures
    assert run.met


def test_one_changed_element_is_caught(run_ranks: Callable[..., Run]) -> None:
    words = ("--size", "4M", "--transfers", "2", "--twin", "corrupt-element", "--reps", "2")
    run = run_ranks("--untraced", "nvshmem", *words)
    assert "caught, as it must be (wrong data: 1 of" in run.done.stdout
