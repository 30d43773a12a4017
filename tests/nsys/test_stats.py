"""The reports of ``nsys stats`` on the shipped traces against gpuscope's sums and counts."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.model.result import Analysis

pytestmark = pytest.mark.nsys

OPERATIONS: dict[str, tuple[str, ...]] = {
    "[CUDA memcpy Host-to-Device]": ("h2d",),
    "[CUDA memcpy Device-to-Host]": ("d2h",),
    "[CUDA memcpy Device-to-Device]": ("d2d",),
    "[CUDA memcpy Peer-to-Peer]": ("p2p",),
    "[CUDA memset]": ("memset",),
}
"""What nsys calls the classes; whatever else it lists is a kernel."""
KERNELS: tuple[str, ...] = ("kernel", "comm", "fused")


def whole_exports() -> list[str]:
    """Return the traces that nsys reads too: copies by `gpuscope anonymize` lack its labels."""
    found = []
    for name in samples.names():
        with contextlib.closing(sqlite3.connect(samples.path(name))) as connection:
            columns = connection.execute("PRAGMA table_info(ENUM_CUDA_MEMCPY_OPER)").fetchall()
        if "label" in {column[1] for column in columns}:
            found.append(name)
    return found


@functools.cache
def analysis(name: str) -> Analysis:
    return api.analyze([samples.path(name)])[0]


def report(nsys: Path, name: str, kind: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a report of ``nsys stats``."""
    trace = folder / "trace.sqlite"
    shutil.copyfile(samples.path(name), trace)
    ran = subprocess.run(
        [nsys, "stats", "--quiet", "--report", kind, "--format", "csv", trace],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "ERROR" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    # Lines before the header tell what is being done.
    lines = ran.stdout.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.count(",") > 3), len(lines))
    return list(csv.DictReader(io.StringIO("\n".join(lines[begin:]))))


def sums(name: str, classes: tuple[str, ...]) -> tuple[int, int, int]:
    """Return count, work and bytes of some classes over all devices."""
    found = [
        device.scope.classes[each]
        for device in analysis(name).devices
        for each in classes
        if each in device.scope.classes
    ]
    return (
        sum(each.count for each in found),
        sum(each.work_ns for each in found),
        sum(each.bytes for each in found),
    )


@pytest.mark.parametrize("name", whole_exports())
def test_counts_and_times(nsys: Path, name: str, tmp_path: Path) -> None:
    listed: dict[tuple[str, ...], tuple[int, int]] = {}
    for row in report(nsys, name, "cuda_gpu_sum", tmp_path):
        classes = OPERATIONS.get(row["Operation"], KERNELS)
        count, work = listed.get(classes, (0, 0))
        listed[classes] = (count + int(row["Instances"]), work + int(row["Total Time (ns)"]))
    assert listed
    gate = api.open_trace(samples.path(name)).rows_of("gate")
    gates = (len(gate), int((gate.end_ns - gate.start_ns).sum()))
    for classes, (count, work) in listed.items():
        mine = sums(name, classes)[:2]
        if classes == KERNELS:  # the start gates are kernels to nsys
            mine = (mine[0] + gates[0], mine[1] + gates[1])
        assert mine == (count, work), classes


@pytest.mark.parametrize("name", ["streams", "p2p", "p2p_pingpong", "jacobi_nccl_r0"])
def test_bytes(nsys: Path, name: str, tmp_path: Path) -> None:
    rows = report(nsys, name, "cuda_gpu_mem_size_sum", tmp_path)
    assert rows
    for row in rows:
        count, _, size = sums(name, OPERATIONS[row["Operation"]])
        assert count == int(row["Count"])
        assert size / 1e6 == pytest.approx(float(row["Total (MB)"]), abs=0.001)


@pytest.mark.parametrize("name", ["streams", "pinned", "pageable", "sync", "hyperq", "bidir"])
def test_ranges_as_the_gpu_saw_them(nsys: Path, name: str, tmp_path: Path) -> None:
    listed = {
        row["Range"].removeprefix(":"): row
        for row in report(nsys, name, "nvtx_gpu_proj_sum", tmp_path)
    }
    mine = {entry.name: entry for entry in analysis(name).ranges}
    assert set(listed) == set(mine)
    for text, row in listed.items():
        assert mine[text].instances == int(row["Range Instances"])
        assert mine[text].scope.span_ns == int(row["Total Proj Time (ns)"])
        total = sum(figures.count for figures in mine[text].scope.classes.values())
        assert total == int(row["Total GPU Ops"])
