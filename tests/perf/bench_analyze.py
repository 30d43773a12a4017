"""Time `gpuscope analyze` on synthetic exports, whole processes, against a plain SQLite scan.

Usage: python -m tests.perf.bench_analyze [--operations 1e6 5e6] [--runs 3] [--folder FOLDER]

Each export is written once into FOLDER and kept there. The scan reads three columns of the kernels
with SQLite's own code; every time is also printed as a multiple of the scan of the same run, which
holds on other machines where seconds do not. `cold` reads the export, `cached` finds the answer,
`columns` asks another question about a trace that was read before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.perf.make_export import write

_ANALYZE = [sys.executable, "-m", "gpuscope", "analyze", "--json"]
_FIGURES = ["--only", "overlap"]
_RANGES = [*_FIGURES, "--only", "ranges"]
_CASES: tuple[tuple[str, list[str], str], ...] = (
    ("overlap, cold", _FIGURES, "fresh"),
    ("overlap, cached", _FIGURES, "kept"),
    ("overlap of a window, columns", [*_FIGURES, "--window", "0:1"], "kept"),
    ("with ranges, cold", _RANGES, "fresh"),
    ("with ranges, cached", _RANGES, "kept"),
    ("all, cold", [], "fresh"),
    ("all, cached", [], "kept"),
)


def scan_s(path: Path) -> float:
    """Return how long SQLite takes to go through three columns of the kernels."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    begun = time.perf_counter()
    connection.execute(
        "SELECT sum(start), sum(end), sum(streamId) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ).fetchone()
    taken = time.perf_counter() - begun
    connection.close()
    return taken


def measure(path: Path, options: Sequence[str], cache: Path) -> tuple[float, float, int]:
    """Return wall time and processor time in s and peak memory in bytes of a whole process."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    begun = time.perf_counter()
    process = subprocess.Popen(
        [*_ANALYZE, *options, str(path)], stdout=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - begun
    if status:
        sys.exit(f"analyze failed with status {status}")
    return taken, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    """Print one table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=float, nargs="+", default=[1e5, 1e6, 5e6])
    parser.add_argument("--runs", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    for operations in map(int, args.operations):
        path = args.folder / f"gpuscope-bench-{operations}.sqlite"
        if not path.exists():
            write(str(path), operations)
        scan = min(scan_s(path) for _ in range(args.runs + 1))
        size = path.stat().st_size
        print(f"\n{operations:,} operations, {size / 1e6:.0f} MB; plain scan {scan:.2f} s")
        print(f"{'':<30}{'wall s':>8}{'× scan':>8}{'cpu s':>8}{'peak MB':>9}{'B/op':>7}")
        with tempfile.TemporaryDirectory() as name:
            cache = Path(name)
            for label, options, state in _CASES:
                taken = []
                for run in range(args.runs):
                    if "--window" in options:  # a question not asked before
                        options = [*options[:-1], f"0:{run + 1}"]
                    if state == "fresh":
                        shutil.rmtree(cache / "gpuscope", ignore_errors=True)
                    taken.append(measure(path, options, cache))
                wall, cpu, peak = (min(column) for column in zip(*taken, strict=True))
                print(
                    f"{label:<30}{wall:>8.2f}{wall / scan:>8.1f}{cpu:>8.2f}{peak / 1e6:>9.0f}"
                    f"{peak / operations:>7.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
