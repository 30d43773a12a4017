"""Hold the CUPTI recorder against Nsight Systems: the same program under both, side by side.

    python scripts/compare_recorders.py answers streams streams:pageable graph training --times 3
    python scripts/compare_recorders.py overhead [none nsys cupti]

`answers` compares operations (class, name, bytes, stream), calls, ranges, verdicts and overlap
ratios; NAME:TWIN is a benchmark's variant, NAME alone a benchmark or a program of
tests/gpu/programs. Each is recorded `--times` by each recorder: the medians of a ratio are
compared, and held against how far it moves under one recorder. `--keep FOLDER` keeps the traces.
`overhead` times 100 000 small launches. Needs a GPU, CuPy, nvtx and nsys.
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
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.benchmarks import BENCHMARKS
from gpuscope.errors import GpuscopeError
from gpuscope.model.classes import CODE
from gpuscope.model.result import Analysis
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace
from gpuscope.recording import folder, launch, recorder
from gpuscope.recording.display import Display
from gpuscope.recording.nsys import parse_capture

SMALL = {"streams": ("--size", "16M"), "graph": ("--size", "16M"), "multicopy": ("--size", "16M")}
"""Options that keep the runs short."""
UNDER_WAY = 3
"""Recordings at a time: one starts, one has the GPU, and one is exported and read."""
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

_TURN = """\
import fcntl, importlib, runpy, sys
path, slow, module, *options = sys.argv[1:]
importlib.import_module(slow)
turn = open(path, "a")
fcntl.lockf(turn, fcntl.LOCK_EX)
sys.argv = [module, *options]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Waits for the GPU when it has imported what takes long, and has it until it ends."""


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


def record(
    which: recorder.Recorder, command: list[str], where: Path, display: Display
) -> folder.RunFolder:
    """Run `command` under a recorder; what it left is exported later."""
    place = folder.prepare(where, "run", force=True)
    which.record(
        command,
        place,
        display=display,
        capture=parse_capture("cuda"),
        timeout_s=60,
        quiet_input=True,
    )
    return place


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

    def spread(self, pair: str) -> float:
        """Return how far the ratio of a pair moved."""
        return max(self.ratios[pair]) - min(self.ratios[pair])


Said = tuple[dict[str, Counter[Any]], list[tuple[str, float, str]]]
"""What is in one recording, and its judged pairs."""


def say(which: recorder.Recorder, command: list[str], where: Path, limits: Any) -> Said:
    """Record `command`, and read what comes of it."""
    place = record(which, command, where, Quiet())
    which.export(place, Quiet())
    trace = open_trace(place.sqlite)
    return describe(trace), list(pairs(api.analyze_trace(trace, Options(ratio_limits=limits))))


def told(readings: list[Future[Said]]) -> Told:
    """Put the recordings of one recorder together."""
    together = Told()
    for counts, judged in (reading.result() for reading in readings):
        together.counts.append(counts)
        for pair, ratio, verdict in judged:
            together.ratios[pair].append(ratio)
            together.verdicts[pair].add(verdict)
    return together


class Programs:
    """The programs that are recorded; a benchmark runs once, for its sizes and calibration."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._limits: dict[str, Any] = {}

    def command(self, name: str) -> tuple[list[str], Any]:
        """Return the command of a program, and what its overlap is held against.

        A twin takes both over from its benchmark: one whose data check fails has none of its own.
        """
        base, _, twin = name.partition(":")
        if base not in {benchmark.name for benchmark in BENCHMARKS}:
            slow = {"training": "torch"}.get(base, "cupy")
            return self._in_turn([sys.executable, "-m", f"tests.gpu.programs.{base}"], slow), {}
        plan = self._root / f"{base}.json"
        words = [*SMALL.get(base, ()), "--reps", "3"]
        if base not in self._limits:
            argv = self._in_turn(launch.benchmark_argv(base, words, plan), "cupy")
            subprocess.run(argv, check=True, capture_output=True)
            self._limits[base] = api.ratio_limits(json.loads(plan.read_text()))
        words += ["--twin", twin] if twin else []
        argv = launch.benchmark_argv(base, words, self._root / "traced.json", plan=plan)
        return self._in_turn(argv, "cupy"), self._limits[base]

    def _in_turn(self, argv: list[str], slow: str) -> list[str]:
        """Have a module, given as `python -m`, import `slow` first and then wait for the GPU."""
        at = argv.index("-m")
        return [*argv[:at], "-c", _TURN, str(self._root / "turn"), slow, *argv[at + 1 :]]


def answers(names: list[str], times: int, root: Path) -> None:
    """Print the table of what both recorders say of the same programs."""
    print(
        "| program | operations | equal | ranges | verdicts | medians apart by no more than "
        "the spread | the pair farthest beyond it, or apart | by | spread under nsys, cupti |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    details: list[str] = []
    tools, programs = recorders(), Programs(root)
    # Each recording has a process of its own: what ends the tree of a recorded program would end
    # all others too.
    with ProcessPoolExecutor(UNDER_WAY) as pool:
        readings: dict[str, dict[str, list[Future[Said]]]] = {}
        for name in names:
            command, limits = programs.command(name)
            readings[name] = {tool: [] for tool in tools}
            for turn in range(times):
                for tool, which in tools.items():
                    where = root / f"{name}-{tool}-{turn}"
                    readings[name][tool].append(pool.submit(say, which, command, where, limits))
        for name, of_tools in readings.items():
            try:
                details += compare(name, of_tools)
            except GpuscopeError as error:
                print(f"| {name} | {error} |", flush=True)
    print("\n".join(details[:60]))


def compare(name: str, readings: dict[str, list[Future[Said]]]) -> list[str]:
    """Print the row of a program; return what is unlike."""
    nsys, cupti = told(readings["nsys"]), told(readings["cupti"])
    wanted = nsys.counts[0]
    details = []
    same = dict.fromkeys(wanted, True)
    for tool, found in (("nsys", nsys.counts), ("cupti", cupti.counts)):
        for counts in found:
            for what, count in counts.items():
                same[what] &= count == wanted[what]
                for sign, more in (("+", count - wanted[what]), ("-", wanted[what] - count)):
                    details += [f"{name} {tool} {sign} {what}: {k} × {n}" for k, n in more.items()]
    shared = sorted(nsys.ratios.keys() & cupti.ratios.keys())
    unlike = [pair for pair in shared if nsys.verdicts[pair] != cupti.verdicts[pair]]
    details += [f"{name}: {pair} {nsys.verdicts[pair]} {cupti.verdicts[pair]}" for pair in unlike]
    apart, beyond = {}, {}
    for pair in shared:
        medians = [statistics.median(each.ratios[pair]) for each in (nsys, cupti)]
        apart[pair] = abs(medians[0] - medians[1])
        beyond[pair] = apart[pair] - max(nsys.spread(pair), cupti.spread(pair))
    outside = [pair for pair in shared if beyond[pair] > 0]
    measure = beyond if outside else apart
    worst = max(outside or shared, key=lambda pair: measure[pair], default=None)
    print(
        f"| {name} | {wanted['operations'].total()} | "
        f"{'yes' if same['operations'] and same['launches'] else 'NO'} | "
        f"{'yes' if same['ranges'] else 'NO'} | "
        f"{len(shared) - len(unlike)} of {len(shared)} | "
        f"{len(shared) - len(outside)} of {len(shared)} | "
        + (
            "no pairs | | |"
            if worst is None
            else f"{worst.replace('|', ' ∩ ')} | {apart[worst]:.4f} | "
            f"{nsys.spread(worst):.4f}, {cupti.spread(worst):.4f} |"
        ),
        flush=True,
    )
    return details


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
                    place = record(tools[name], command, Path(root, name), display)
                    if name == "cupti":  # says what its own code took
                        tools[name].export(place, display)
                line = next((line for line in display.lines if line.startswith("TOOK")), None)
                if line is None:
                    sys.exit(
                        "\n".join([f"{name}: the program ended without times", *display.lines])
                    )
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
    parser.add_argument("--keep", type=Path)
    args = parser.parse_intermixed_args()
    if args.what == "overhead":
        overhead(args.names or ["none", "nsys", "cupti"])
    else:
        with tempfile.TemporaryDirectory() as passing:
            root = args.keep or Path(passing)
            root.mkdir(parents=True, exist_ok=True)
            answers(args.names, args.times, root)


if __name__ == "__main__":
    main()
