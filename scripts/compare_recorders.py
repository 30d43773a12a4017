"""Hold the CUPTI recorder against Nsight Systems: the same program under both, side by side.

    python scripts/compare_recorders.py answers streams streams:pageable graph training
    python scripts/compare_recorders.py overhead

`answers` compares operations (class, name, bytes, stream), calls, ranges, verdicts and overlap
ratios; NAME:TWIN is a benchmark's variant, NAME alone a benchmark or a program of
tests/gpu/programs. `overhead` times 100 000 small launches. Needs a GPU, CuPy, nvtx and nsys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.benchmarks import BENCHMARKS
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


def answers(names: list[str]) -> None:
    """Print the table of what both recorders say of the same programs."""
    tools = recorders()
    print("| program | operations | equal | ranges | verdicts | largest difference of a ratio |")
    print("|---|---|---|---|---|---|")
    details = []
    benchmarks = {benchmark.name for benchmark in BENCHMARKS}
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            base, _, twin = name.partition(":")
            limits: dict[str, Any] = {}
            if base in benchmarks:
                words = [*SMALL.get(base, ()), "--reps", "3", *(["--twin", twin] if twin else [])]
                plan = Path(root, "plan.json")
                argv = launch.benchmark_argv(base, words, plan)
                subprocess.run(argv, check=True, capture_output=True)
                limits = {"ratio_limits": api.ratio_limits(json.loads(plan.read_text()))}
                command = launch.benchmark_argv(base, words, Path(root, "traced.json"), plan=plan)
            else:
                command = [sys.executable, "-m", f"tests.gpu.programs.{base}"]
            traces, found = {}, {}
            for tool, which in tools.items():
                path = record(which, command, Path(root, tool), Quiet())
                traces[tool] = open_trace(path)
                analysis = api.analyze_trace(traces[tool], Options(**limits))
                found[tool] = {pair: (ratio, verdict) for pair, ratio, verdict in pairs(analysis)}
            told = {tool: describe(trace) for tool, trace in traces.items()}
            for what in told["nsys"]:
                for row, sign in (("nsys", "-"), ("cupti", "+")):
                    other = "cupti" if row == "nsys" else "nsys"
                    extra = told[row][what] - told[other][what]
                    details += [f"{name} {sign} {what}: {key} × {n}" for key, n in extra.items()]
            shared = found["nsys"].keys() & found["cupti"].keys()
            apart = max(
                (abs(found["nsys"][one][0] - found["cupti"][one][0]) for one in shared), default=0.0
            )
            unlike = [one for one in shared if found["nsys"][one][1] != found["cupti"][one][1]]
            details += [f"{name}: {one} {[found[t][one] for t in found]}" for one in unlike]
            same = {what: told["nsys"][what] == told["cupti"][what] for what in told["nsys"]}
            print(
                f"| {name} | {told['nsys']['operations'].total()} | "
                f"{'yes' if same['operations'] and same['launches'] else 'NO'} | "
                f"{'yes' if same['ranges'] else 'NO'} | "
                f"{len(shared) - len(unlike)} of {len(shared)} | {apart:.4f} |",
                flush=True,
            )
    print("\n".join(details[:60]))


def overhead() -> None:
    """Print what a small launch takes without a recorder, and with each."""
    tools = recorders()
    command = [sys.executable, "-c", _LAUNCH]
    took: dict[str, list[float]] = {"none": [], "nsys": [], "cupti": []}
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
    base = statistics.median(took["none"])
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
    args = parser.parse_args()
    if args.what == "overhead":
        overhead()
    else:
        answers(args.names)


if __name__ == "__main__":
    main()
