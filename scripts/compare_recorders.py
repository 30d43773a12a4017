"""Hold the CUPTI recorder against Nsight Systems: the same program under both, side by side.

    python scripts/compare_recorders.py answers streams streams:pageable graph training
    python scripts/compare_recorders.py answers --times 3 streams training
    python scripts/compare_recorders.py overhead [none nsys cupti]

`answers` compares operations (class, name, bytes, stream), calls, ranges, verdicts and overlap
ratios; NAME:TWIN is a benchmark's variant, NAME alone a benchmark or a program of
tests/gpu/programs. With `--times` each is recorded so often by each recorder: the medians are
compared, and held against how far the ratio moves under one recorder. `overhead` times 100 000
small launches. Needs a GPU, CuPy, nvtx and nsys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.benchmarks import BENCHMARKS, find_benchmark
from gpuscope.model.classes import CODE
from gpuscope.model.result import Analysis
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace
from gpuscope.recording import folder, launch, recorder
from gpuscope.recording.display import Display
from gpuscope.recording.nsys import parse_capture

SMALL = {"streams": ("--size", "16M"), "graph": ("--size", "16M"), "multicopy": ("--size", "16M")}
"""Options that keep the runs short."""
LAUNCHES = 100_000
_CLASSES = {code: name for name, code in CODE.items()}

_LAUNCH = f"""\
import time, cupy
kernel = cupy.RawKernel('extern "C" __global__ void tiny(float* x) {{}}', "tiny")
x, stream, took = cupy.zeros(1, "f"), cupy.cuda.Stream(non_blocking=True), []
with stream:
    for _ in range(1000):
        kernel((1,), (32,), (x,))
    stream.synchronize()
    cupy.cuda.runtime.profilerStart()
    for _ in range(3):
        began = time.perf_counter()
        for _ in range({LAUNCHES}):
            kernel((1,), (32,), (x,))
        stream.synchronize()
        took.append(time.perf_counter() - began)
    cupy.cuda.runtime.profilerStop()
print("TOOK", *took)
"""


class Quiet(Display):
    """Keeps what a program says, and shows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Keep a sentence."""
        self.lines.append(text)

    def program_line(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


def recorders() -> dict[str, recorder.Recorder]:
    """Return both recorders, by name."""
    options: dict[str, Any] = {
        "trace": None,
        "nsys_args": (),
        "call_stacks": False,
        "display": Quiet(),
    }
    return {
        "nsys": recorder.choose(nsys=True, cupti=False, **options),
        "cupti": recorder.choose(nsys=False, cupti=True, **options),
    }


def record(which: recorder.Recorder, command: list[str], where: Path, display: Display) -> Path:
    """Run `command` under a recorder; return its trace."""
    place = folder.prepare(where, "run", force=True)
    which.record(
        command,
        place,
        display=display,
        capture=parse_capture("cuda"),
        timeout_s=60,
        quiet_input=True,
    )
    which.export(place, display)
    return place.sqlite


def describe(trace: Trace) -> dict[str, Counter[Any]]:
    """Count what is in a trace, by all that must be equal."""
    operations, calls, ranges = trace.operations, trace.api, trace.ranges
    assert operations is not None
    streams = [trace.streams[index].number if index >= 0 else -1 for index in operations.stream]
    return {
        "operations": Counter(
            zip(
                [_CLASSES[int(code)] for code in operations.op_class],
                [trace.strings[name] for name in operations.name],
                operations.size_bytes.tolist(),
                streams,
                strict=True,
            )
        ),
        "launches": Counter(
            trace.strings[name]
            for name in (calls.name if calls else [])
            if any(word in trace.strings[name] for word in ("Launch", "Memcpy", "Memset", "Wait"))
        ),
        "ranges": Counter(trace.strings[name] for name in (ranges.name if ranges else [])),
    }


def pairs(analysis: Analysis) -> Iterator[tuple[str, float, str]]:
    """Yield (range and pair, overlap ratio, verdict) of every judged pair."""
    for one in analysis.ranges:
        for pair in one.scope.pairs:
            if pair.overlap_ratio is not None:
                yield f"{one.name} {pair.a}|{pair.b}", pair.overlap_ratio, pair.verdict


@dataclass
class Told:
    """What one recorder said of a program, each time."""

    counts: list[dict[str, Counter[Any]]] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    verdicts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, trace: Trace, limits: dict[str, Any]) -> None:
        """Take one recording in."""
        self.counts.append(describe(trace))
        for pair, ratio, verdict in pairs(api.analyze_trace(trace, Options(**limits))):
            self.ratios[pair].append(ratio)
            self.verdicts[pair].add(verdict)

    def spread(self, pair: str) -> float:
        """Return how far the ratio of a pair moved."""
        return max(self.ratios[pair]) - min(self.ratios[pair])


def prepare(name: str, root: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the command of a program, and what its overlap is held against.

    A benchmark runs once beforehand, for its sizes and calibration; one whose data check must fail
    writes no result, so the benchmark itself stands for it.
    """
    base, _, twin = name.partition(":")
    if base not in {benchmark.name for benchmark in BENCHMARKS}:
        return [sys.executable, "-m", f"tests.gpu.programs.{base}"], {}
    words = [*SMALL.get(base, ()), "--reps", "3"]
    of_twin = ["--twin", twin] if twin else []
    has_result = not twin or not find_benchmark(base).twin(twin).wrong_data
    plan = root / "plan.json"
    argv = launch.benchmark_argv(base, [*words, *(of_twin if has_result else [])], plan)
    subprocess.run(argv, check=True, capture_output=True)
    command = launch.benchmark_argv(base, [*words, *of_twin], root / "traced.json", plan=plan)
    return command, {"ratio_limits": api.ratio_limits(json.loads(plan.read_text()))}


def answers(names: list[str], times: int) -> None:
    """Print the table of what both recorders say of the same programs."""
    tools = recorders()
    print(
        "| program | operations | equal | ranges | verdicts | largest difference of a ratio | "
        "spread of that pair under nsys, cupti |"
    )
    print("|---|---|---|---|---|---|---|")
    details = []
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            command, limits = prepare(name, Path(root))
            told = {tool: Told() for tool in tools}
            for _ in range(times):
                for tool, which in tools.items():
                    path = record(which, command, Path(root, tool), Quiet())
                    told[tool].add(open_trace(path), limits)
            nsys, cupti = told["nsys"], told["cupti"]
            wanted = nsys.counts[0]
            same = dict.fromkeys(wanted, True)
            for row, what, counts in (
                (row, what, found[what])
                for row, each in told.items()
                for found in each.counts
                for what in found
            ):
                if counts != wanted[what]:
                    same[what] = False
                    for more, sign in ((counts - wanted[what], "+"), (wanted[what] - counts, "-")):
                        details += [
                            f"{name} {row} {sign} {what}: {key} × {n}" for key, n in more.items()
                        ]
            shared = nsys.ratios.keys() & cupti.ratios.keys()
            unlike = [one for one in shared if nsys.verdicts[one] != cupti.verdicts[one]]
            details += [
                f"{name}: {one} {nsys.verdicts[one]} {cupti.verdicts[one]}" for one in unlike
            ]
            apart = {
                one: abs(statistics.median(nsys.ratios[one]) - statistics.median(cupti.ratios[one]))
                for one in shared
            }
            worst = max(sorted(apart), key=lambda one: apart[one], default=None)
            print(
                f"| {name} | {wanted['operations'].total()} | "
                f"{'yes' if same['operations'] and same['launches'] else 'NO'} | "
                f"{'yes' if same['ranges'] else 'NO'} | "
                f"{len(shared) - len(unlike)} of {len(shared)} | "
                + (
                    "no pairs | |"
                    if worst is None
                    else f"{apart[worst]:.4f} ({worst}) | "
                    f"{nsys.spread(worst):.4f}, {cupti.spread(worst):.4f} |"
                ),
                flush=True,
            )
    print("\n".join(details[:60]))


def overhead(names: list[str]) -> None:
    """Print what a small launch takes without a recorder, and with each of `names`."""
    tools = recorders()
    command = [sys.executable, "-c", _LAUNCH]
    took: dict[str, list[float]] = {name: [] for name in names}
    said: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        for _ in range(3):
            for name in took:
                display = Quiet()
                if name == "none":
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    display.lines = done.stdout.splitlines()
                else:
                    record(tools[name], command, Path(root, name), display)
                line = next(line for line in display.lines if line.startswith("TOOK"))
                took[name] += [float(word) for word in line.split()[1:]]
                said += [line for line in display.lines if "recorder's Python" in line]
    base = statistics.median(took[names[0]])
    print(f"| recorder | time of {LAUNCHES} launches | a launch more |")
    print("|---|---|---|")
    for name, times in took.items():
        middle = statistics.median(times)
        print(
            f"| {name} | {middle:.3f} s ({min(times):.3f} to {max(times):.3f}) | "
            f"{(middle - base) / LAUNCHES * 1e9:.0f} ns |"
        )
    print("\n".join(said))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("answers", "overhead"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--times", type=int, default=1)
    args = parser.parse_intermixed_args()
    if args.what == "overhead":
        overhead(args.names or ["none", "nsys", "cupti"])
    else:
        answers(args.names, args.times)


if __name__ == "__main__":
    main()
