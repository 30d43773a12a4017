"""Gates on a real GPU: a good run meets its budget, and what loses the overlap fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.errors import MissingError
from gpuscope.recording import nsys

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

PIPELINE = """\
import cupy as cp
import numpy as np
import nvtx
import pytest

CHUNKS, ELEMENTS = 8, 4 * 2**20
KERNEL = cp.RawKernel(r'''
extern "C" __global__ void work(float* data, int steps) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = data[i];
    for (int step = 0; step < steps; ++step) x = fmaf(x, 1.0f, 1.0f);
    data[i] = x;
}''', "work")


def run(streams):
    hosts = []
    for _ in range(CHUNKS):
        memory = cp.cuda.alloc_pinned_memory(4 * ELEMENTS)
        hosts.append(np.frombuffer(memory, np.float32, ELEMENTS))
    buffers = [cp.empty(ELEMENTS, np.float32) for _ in streams]

    def step():
        for chunk, host in enumerate(hosts):
            turn = chunk % len(streams)
            with streams[turn]:
                buffers[turn].set(host)
                KERNEL((ELEMENTS // 256,), (256,), (buffers[turn], np.int32(3000)))
                buffers[turn].get(out=host, blocking=False)

    step()
    cp.cuda.Device().synchronize()
    for index in range(5):
        with nvtx.annotate("step"):
            step()
        if index < 4:  # the last one is waited for by the fixture
            cp.cuda.Device().synchronize()


def test_on_several_streams(gpuscope_trace):
    run([cp.cuda.Stream(non_blocking=True) for _ in range(4)])
    step = gpuscope_trace("step")
    assert step.hidden("h2d", by="kernel") > 0.5
    step.expect("hidden(d2h, kernel).worst > 40 %")
    assert step.lacks("same-stream", "pageable-copy")
    assert step.value("instances") == 5


def test_on_one_stream(gpuscope_trace):
    run([cp.cuda.Stream(non_blocking=True)])
    assert gpuscope_trace("step").hidden("h2d", by="kernel") > 0.5
"""


@pytest.fixture
def _with_nsys() -> None:
    try:
        nsys.find()
    except MissingError as error:
        pytest.skip(str(error))


def check_plugin(tmp_path: Path, **env: str) -> None:
    (tmp_path / "test_pipeline.py").write_text(PIPELINE)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "gpuscope.pytest_plugin", "-rA"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # gpuscope may be installed here, or not
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_pipeline.py::test_on_several_streams" in done.stdout
    assert "FAILED test_pipeline.py::test_on_one_stream" in done.stdout
    assert "assert 0.0 > 0.5" in done.stdout


@pytest.mark.usefixtures("_with_nsys")
def test_the_plugin_records_a_test_and_fails_the_one_that_lost_its_overlap(tmp_path: Path) -> None:
    check_plugin(tmp_path)


def test_the_plugin_does_without_nsys(tmp_path: Path) -> None:
    check_plugin(tmp_path, NSYS="/nonexistent")


def gpuscope(folder: Path, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "gpuscope", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        check=False,
    ).returncode


@pytest.mark.usefixtures("_with_nsys")
def test_a_twin_fails_the_budget_of_the_good_run(tmp_path: Path) -> None:
    small = ("streams", "--size", "32M", "--reps", "5")

    assert gpuscope(tmp_path, "run", "--nsys", *small) == 0
    assert gpuscope(tmp_path, "verify", "--record", "last", "-o", "budget.toml") == 0
    assert gpuscope(tmp_path, "run", "--nsys", *small) == 0
    assert gpuscope(tmp_path, "verify", "last", "--budget", "budget.toml") == 0
    assert gpuscope(tmp_path, "run", "--nsys", *small, "--twin", "one-stream") == 0
    assert gpuscope(tmp_path, "verify", "last", "--budget", "budget.toml") == 4
    assert gpuscope(tmp_path, "compare", "last~2", "last~1") == 0
    assert gpuscope(tmp_path, "compare", "last~1", "last") == 0
    assert gpuscope(tmp_path, "runs") == 0
