"""Measuring on the GPU: start gate, NVTX ranges, and the loop that every benchmark runs.

A pass is timed between two events on the GPU. Everything it consists of is issued while a gate
kernel holds the streams back, so that what is timed is the schedule and not the interpreter's
launch rate. ::

    host    push range | issue all | open gate | wait for all | pop range
    gate    [=== gs_gate ==========]
    streams                         |start| [ the pass ] |end|
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gpuscope.benchmarks._harness.links import describe_links
from gpuscope.benchmarks._harness.machine import Gpu, Readings, Sampler, describe
from gpuscope.benchmarks._harness.result import (
    Expectation,
    Quantity,
    Result,
    pass_table,
    quantity_table,
)
from gpuscope.benchmarks._harness.stats import Interval, Statistics, is_steady, is_warm
from gpuscope.errors import MissingError, ProgramError, UsageError
from gpuscope.units import NS_PER_MS, NS_PER_S

_T = TypeVar("_T")

NVTX_DOMAIN = "gpuscope"
GATE_LIMIT_NS = 10 * NS_PER_S
MAX_PENDING = 1000
"""Operations that may be issued behind a closed gate: with more, a launch waits for the gate."""
MAX_CONNECTIONS = 32
"""The largest number that CUDA_DEVICE_MAX_CONNECTIONS may have."""
INSTALL_HINT = "`pip install 'gpuscope[cuda13]'` (or cuda12) brings it"

_GATE_SOURCE = r"""
// Holds its stream back until the host writes `ticket` to *flag; gives up after limit_ns and says
// so in *given_up. The memory is the host's, pinned.
extern "C" __global__ void gs_gate(volatile unsigned* flag, volatile unsigned* given_up,
                                   unsigned ticket, unsigned long long limit_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        if (*flag == ticket) return;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < limit_ns);
    *given_up = ticket;
}
"""


def say(text: str) -> None:
    """Tell the user how far it got; stdout is for the product."""
    print(text, file=sys.stderr, flush=True)


def import_cupy() -> Any:
    """Return the CuPy module, after checking that a GPU can be used.

    Raises
    ------
    MissingError
        CuPy, a driver or a GPU is missing.
    """
    try:
        import cupy as cp
    except ImportError as error:
        raise MissingError(f"CuPy cannot be imported ({error}): {INSTALL_HINT}.") from error
    try:
        cp.cuda.runtime.getDeviceCount()
    except cp.cuda.runtime.CUDARuntimeError as error:
        raise MissingError(
            f"no CUDA driver or GPU found ({error}): `gpuscope doctor` says what is missing."
        ) from error
    return cp


def host_array(cp: Any, elements: int, *, pinned: bool = True) -> Any:
    """Return a float32 NumPy array in host memory; one that is not pinned is touched first."""
    import numpy as np

    return pinned_array(cp, elements) if pinned else np.zeros(elements, np.float32)


def pinned_array(cp: Any, elements: int) -> Any:
    """Return an uninitialised float32 NumPy array in pinned host memory."""
    import numpy as np

    memory = cp.cuda.alloc_pinned_memory(elements * 4)
    return np.frombuffer(memory, np.float32, elements)


def count_gpus(machine: Mapping[str, Any]) -> int:
    """Return how many GPUs were at work: ranks may share one, and lie on several hosts."""
    gpus = machine.get("gpus", [None])
    hosts = machine.get("hosts", [None] * len(gpus))
    return len(set(zip(hosts, gpus, strict=True)))


def event_for(cp: Any, stream: Any, *, timing: bool = False) -> Any:
    """Return an event that can be recorded on `stream`: both belong to the same GPU."""
    on_current = stream.device_id < 0  # the null stream
    with cp.cuda.Device(None if on_current else stream.device_id):
        return cp.cuda.Event(disable_timing=not timing)


class StartGate:
    """Holds streams back, of this GPU and others, until everything behind it has been issued."""

    def __init__(self, cp: Any, flag: Any = None, *, opens: bool = True) -> None:
        """Make it. `flag` is an array of one uint32 that it watches, by default one of its own.

        Several processes may watch one; then only one of them `opens` it.
        """
        import numpy as np

        self._cp = cp
        self._opens = opens
        self._stream = cp.cuda.Stream(non_blocking=True)
        self._memory = cp.cuda.alloc_pinned_memory(8)
        self._state = np.frombuffer(self._memory, np.uint32, 2)
        self._state[:] = 0
        self._flag = self._state[:1] if flag is None else flag
        self._ticket = 0
        self._kernel = cp.RawKernel(_GATE_SOURCE, "gs_gate")
        self.started = cp.cuda.Event()
        self._ended = cp.cuda.Event()
        self.hold([self._stream])  # loads the kernel now: loading may wait for the whole device
        self.finish([self._stream])

    def hold(self, streams: Sequence[Any], lead: Callable[[], None] | None = None) -> None:
        """Close the gate: what is issued to `streams` from here on waits until it opens.

        What `lead` issues to them goes first once it opens, and is not in the time.
        """
        import numpy as np

        self._ticket += 1
        with self._stream:
            arguments = (
                self._flag.ctypes.data,
                self._state[1:].ctypes.data,
                np.uint32(self._ticket),
                np.uint64(GATE_LIMIT_NS),
            )
            self._kernel((1,), (1,), arguments)
        if lead is not None:
            self.started.record(self._stream)
            for stream in streams:
                stream.wait_event(self.started)
            lead()
            self._join(streams)
        self.started.record(self._stream)
        for stream in streams:
            stream.wait_event(self.started)

    def open(self) -> None:
        """Let the streams go; opening an open gate does nothing."""
        if self._opens:
            self._flag[0] = self._ticket

    def finish(
        self, streams: Sequence[Any], before_opening: Callable[[], None] | None = None
    ) -> int:
        """Open the gate, wait until all `streams` are done; return the ns from start to end.

        The end is recorded before the gate opens: a host that is held up in between adds nothing.

        Raises
        ------
        ProgramError
            The gate gave up before it was opened, so the time means nothing.
        """
        self._join(streams)
        self._ended.record(self._stream)
        if before_opening is not None:
            before_opening()
        self.open()
        self._ended.synchronize()
        if self._state[1] == self._ticket:
            raise ProgramError(
                f"the start gate gave up after {GATE_LIMIT_NS // NS_PER_S} s: the host could not "
                "issue the work in that time. Is the machine overloaded?"
            )
        return self.since_start_ns(self._ended)

    def _join(self, streams: Sequence[Any]) -> None:
        """Let the gate's stream wait for what was issued to all `streams`."""
        for stream in streams:
            event = event_for(self._cp, stream)
            event.record(stream)
            self._stream.wait_event(event)

    def since_start_ns(self, event: Any) -> int:
        """Return the time from the opening to a recorded, reached event."""
        elapsed_ms: float = self._cp.cuda.get_elapsed_time(self.started, event)
        return round(elapsed_ms * NS_PER_MS)


class Ranges:
    """NVTX ranges in gpuscope's domain, in one benchmark's category."""

    def __init__(self, benchmark: str) -> None:
        try:
            import nvtx
        except ImportError as error:
            raise MissingError(f"nvtx cannot be imported ({error}): {INSTALL_HINT}.") from error
        self._annotate = nvtx.annotate
        self._category = benchmark
        self._made: dict[tuple[str, int | None], AbstractContextManager[Any]] = {}

    def prepare(self, name: str, payload: int | None = None) -> AbstractContextManager[Any]:
        """Return a range, built when first asked for, so that opening it costs little.

        ``with`` opens it.
        """
        key = (name, payload)
        if key not in self._made:
            self._made[key] = self._annotate(
                message=name, domain=NVTX_DOMAIN, category=self._category, payload=payload
            )
        return self._made[key]


@dataclass(frozen=True, slots=True)
class Pass:
    """One way of doing the work, timed under its own range.

    ``issue`` starts everything on ``streams`` and returns. Where it waits for the GPU in between
    (``waits``), the gate is opened before it, since it would wait for ever behind a closed one.
    ``prepare`` is done before the range begins, and is neither timed nor judged. Nor is what
    ``lead`` issues on the streams: it runs right before the rest, behind the same gate, and may
    not wait.
    """

    name: str
    streams: Sequence[Any]
    issue: Callable[[], None]
    waits: bool = False
    prepare: Callable[[], None] | None = None
    lead: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of each pass, how many iterations warmed up, and what the GPU did meanwhile.

    ``issued`` is the time that the host took to issue each pass, ``beside`` what the other GPUs
    of the process did.
    """

    passes: Mapping[str, Statistics]
    issued: Mapping[str, Statistics]
    warmup: int
    readings: Readings
    beside: Sequence[Readings] = ()


class Team:
    """The processes that measure together: this one alone. Ranks have another (`ranks.py`)."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Wait until all are here."""

    def gather(self, value: _T) -> list[_T]:
        """Return the value of each, in the order of the ranks, to all of them."""
        return [value]

    def every(self, flag: bool) -> bool:
        """Say whether `flag` is true on all."""
        return all(self.gather(flag))

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return at each place the largest value of all."""
        return [max(column) for column in zip(*self.gather(values), strict=True)]

    def gate(self, cp: Any, own: StartGate) -> StartGate:
        """Return the gate that all start a pass by: this process's `own`, if it is alone."""
        return own

    def describe(self) -> dict[str, Any]:
        """Return what the machine's description has of them."""
        return {}


class Session:
    """One benchmark process on one GPU; made by :func:`open_session`."""

    def __init__(self, benchmark: str, cp: Any, device: int, team: Team) -> None:
        self.cp = cp
        self.device = device
        self.team = team
        self.ranges = Ranges(benchmark)
        self._benchmark = benchmark
        self.pci_bus_id: str = cp.cuda.runtime.deviceGetPCIBusId(device)
        self._gpu = Gpu(self.pci_bus_id)
        self._beside: list[Gpu] = []
        self._numa = self._gpu.bind_process()
        # Only now the first context is made, by the processors it was bound to.
        cp.cuda.runtime.setDevice(device)
        self.gate = StartGate(cp)
        self.joint_gate = team.gate(cp, self.gate)

    @property
    def copy_engines(self) -> int:
        """Number of copy engines the device reports."""
        return self.property("asyncEngineCount")

    def property(self, name: str) -> int:
        """Return a number from the device's properties, by its name in cudaDeviceProp."""
        return int(self.cp.cuda.runtime.getDeviceProperties(self.device)[name])

    def watch(self, device: int) -> None:
        """Sample another GPU of the process, too, while measuring."""
        self._beside.append(Gpu(self.cp.cuda.runtime.deviceGetPCIBusId(device)))

    def pcie_limit_bytes_per_s(self, readings: Readings) -> float | None:
        """Return what the GPU's PCIe link carries one way, as it was under load."""
        limit: float | None = readings.summary().get("pcie_limit_bytes_per_s")
        return limit

    def conclude(
        self,
        measured: Measured,
        *,
        twin: str | None,
        options: Mapping[str, Any],
        stages: Mapping[str, int | None],
        figures: Mapping[str, float | None],
        quantities: Sequence[Quantity],
        expected: Sequence[Expectation],
        title: str,
        baselines: Mapping[str, str] | None = None,
        lines: Sequence[str] = (),
        notes: Sequence[str] = (),
        cold: bool = False,
        memory_bound: Sequence[str] = (),
    ) -> Result:
        """Put the result together, with the machine, its faults, and the table for people.

        `title` says in a few words what was done; `baselines` names for a pass the one that its
        speed-up is against; `lines` stand below the tables. A `cold` run is
        not void because the clock rose, nor is one with passes that are `memory_bound` because it
        drifted, if their times did not.
        """
        bound = [measured.passes[name] for name in memory_bound]
        steady = bool(bound) and all(map(is_steady, bound))
        find_faults = partial(Readings.faults, steady=steady)
        faults = self._of_all([] if cold else self._of_gpus(measured, find_faults))
        find_notes = partial(Readings.notes, steady=steady)
        remarks = (*notes, *self._of_all(self._of_gpus(measured, find_notes)))
        machine = describe(self.cp, self.device, self._gpu, self._numa, measured.readings)
        machine |= self.team.describe()
        if self._beside:
            machine["gpus"] = [gpu.pci_bus_id for gpu in (self._gpu, *self._beside)]
            machine["links"] = describe_links(machine["gpus"])
        name = f"{self._benchmark}, twin {twin}" if twin else self._benchmark
        gpus = count_gpus(machine)
        count = f"{gpus} × " if gpus > 1 else ""
        table = [
            f"{name}, on {count}{machine['gpu']}: {title}",
            *(f"VOID, times not to be used: {fault}" for fault in faults),
            *pass_table(measured.passes),
            *quantity_table(quantities),
            *lines,
            *(f"note: {remark}" for remark in remarks),
        ]
        return Result(
            benchmark=self._benchmark,
            twin=twin,
            options=options,
            repetitions=max(times.n for times in measured.passes.values()),
            warmup=measured.warmup,
            passes=measured.passes,
            baselines=baselines or {},
            issued=measured.issued,
            stages=stages,
            figures=figures,
            quantities=tuple(quantities),
            expected=tuple(expected),
            machine=machine,
            notes=(*faults, *remarks),
            valid=not faults,
            table="" if self.team.rank else "\n".join(table),
        )

    def _of_gpus(self, measured: Measured, remarks: Callable[[Readings], list[str]]) -> list[str]:
        """Return the remarks on the readings of all GPUs of the process; others with their id."""
        found = remarks(measured.readings)
        for gpu, readings in zip(self._beside, measured.beside, strict=True):
            found += [f"GPU {gpu.pci_bus_id}: {remark}" for remark in remarks(readings)]
        return found

    def _of_all(self, remarks: Sequence[str]) -> list[str]:
        """Return the remarks of all ranks, each with its rank where there are several."""
        found = self.team.gather(tuple(remarks))
        if len(found) == 1:
            return list(found[0])
        return [f"rank {rank}: {remark}" for rank, own in enumerate(found) for remark in own]

    def time_operations(
        self, queues: Sequence[tuple[Any, Sequence[Callable[[], None]]]], *, waits: bool = False
    ) -> list[list[Interval]]:
        """Time each operation of one or several queues that start together.

        Parameters
        ----------
        queues
            Of each queue its stream, and functions that issue one operation to it.
        waits
            An operation waits for the GPU: open the gate first.

        Returns
        -------
        list of list of (start_ns, end_ns)
            A list a queue, in order, from the opening of the gate.
        """
        marks = [
            [self.cp.cuda.Event() for _ in range(len(operations) + 1)] for _, operations in queues
        ]
        streams = [stream for stream, _ in queues]
        self.gate.hold(streams)
        try:
            if waits:
                self.gate.open()
            for (stream, operations), events in zip(queues, marks, strict=True):
                events[0].record(stream)
                for operation, event in zip(operations, events[1:], strict=True):
                    operation()
                    event.record(stream)
        finally:
            self.gate.finish(streams)
        reached = [[self.gate.since_start_ns(event) for event in events] for events in marks]
        return [list(itertools.pairwise(times)) for times in reached]

    def time_batch(
        self, streams: Sequence[Any], issue: Callable[[], None], *, waits: bool = False
    ) -> int:
        """Return the ns that the work which `issue` starts on `streams` takes, from the gate on.

        `waits`: issuing it waits for the GPU, so that the gate is opened before.
        """
        self.gate.hold(streams)
        try:
            if waits:
                self.gate.open()
            issue()
            return self.gate.finish(streams)
        finally:
            self.gate.open()

    def measure(
        self,
        passes: Sequence[Pass],
        repetitions: int,
        *,
        check: Callable[[], None],
        warm: bool = True,
        corrupt: Any = None,
    ) -> Measured:
        """Warm up, then time `passes` in turn `repetitions` times, as a profiler may record it.

        Ranks start each pass together, and take for each the longest time of all of them.

        Parameters
        ----------
        passes
            What to time, in this order, in each repetition.
        repetitions
            How many.
        check
            Raises if the data is wrong; called before and after the measurement, in neither the
            times nor the recording.
        warm
            False leaves the warm-up, and with it the first check, out.
        corrupt
            A flat array of what the passes leave, or a function that returns it then: its last
            element is changed before the last check, which must see it.
        """
        prepare = self.ranges.prepare
        runtime = self.cp.cuda.runtime
        labels = {item.name: prepare(item.name) for item in passes}
        iterations = [prepare("gs:iter", index) for index in range(repetitions)]
        measure, validate = prepare("gs:measure", repetitions), prepare("gs:validate")
        warmup = 0
        if warm:
            with prepare("gs:warmup"):
                warmup = self._warm_up(passes, labels)
            with validate:
                self.check(check)
        times_ns: dict[str, list[int]] = {item.name: [] for item in passes}
        issued_ns: dict[str, list[int]] = {item.name: [] for item in passes}
        say(f"measuring {repetitions}×")
        samplers = [Sampler(gpu) for gpu in (self._gpu, *self._beside)]
        with ExitStack() as stack:
            for sampler in samplers:
                stack.enter_context(sampler)
            runtime.profilerStart()
            try:
                with measure:
                    for iteration in iterations:
                        with iteration:
                            for item in passes:
                                taken_ns, issue_ns = self._run(item, labels[item.name])
                                times_ns[item.name].append(taken_ns)
                                issued_ns[item.name].append(issue_ns)
                    runtime.deviceSynchronize()
            finally:
                runtime.profilerStop()
        if corrupt is not None:
            array = corrupt() if callable(corrupt) else corrupt
            array[-1:] += 1
        with validate:
            self.check(check)
        passed, issued = (
            {name: Statistics.of(self.team.largest(times)) for name, times in each.items()}
            for each in (times_ns, issued_ns)
        )
        readings, *beside = (sampler.readings() for sampler in samplers)
        return Measured(passed, issued, warmup, readings, beside)

    def check(self, check: Callable[[], None]) -> None:
        """Check the data; what is wrong on one rank is an error on all of them."""
        try:
            check()
            failure = None
        except ProgramError as error:
            failure = str(error)
        found = self.team.gather(failure)
        for rank, message in enumerate(found):
            if message is not None:
                where = f" (rank {rank})" if len(found) > 1 else ""
                raise ProgramError(f"{message}{where}")

    def _warm_up(
        self, passes: Sequence[Pass], labels: Mapping[str, AbstractContextManager[Any]]
    ) -> int:
        """Run the passes until their time is steady; return how many times."""
        say("warming up")
        times_ns: list[int] = []
        begin_ns = time.monotonic_ns()
        while not self.team.every(is_warm(times_ns, time.monotonic_ns() - begin_ns)):
            times_ns.append(sum(self._run(item, labels[item.name])[0] for item in passes))
        return len(times_ns)

    def _run(self, item: Pass, label: AbstractContextManager[Any]) -> tuple[int, int]:
        """Run one pass under its range; return its time and that of issuing it, in ns."""
        if item.prepare is not None:
            item.prepare()
        self.joint_gate.hold(item.streams, item.lead)
        try:
            if item.waits:
                self.team.barrier()
            with label:
                if item.waits:
                    self.joint_gate.open()
                begin_ns = time.perf_counter_ns()
                item.issue()
                issue_ns = time.perf_counter_ns() - begin_ns
                together = None if item.waits else self.team.barrier
                return self.joint_gate.finish(item.streams, together), issue_ns
        finally:
            self.joint_gate.open()


@contextmanager
def open_session(benchmark: str, device: int = 0, team: Team | None = None) -> Iterator[Session]:
    """Prepare the process for measuring, and turn what CUDA raises in the block into one error.

    `device` is the GPU's number in the process; `team` are the processes that measure with it.

    Raises
    ------
    MissingError
        CuPy, nvtx, a driver or a GPU is missing.
    UsageError
        CUDA_LAUNCH_BLOCKING is set: every launch would wait behind the closed gate.
    ProgramError
        CUDA failed in the block.
    """
    refuse_blocking_launches(os.environ)
    cp = import_cupy()
    failures = (
        cp.cuda.runtime.CUDARuntimeError,
        cp.cuda.driver.CUDADriverError,
        cp.cuda.compiler.CompileException,
        cp.cuda.memory.OutOfMemoryError,
    )
    try:
        yield Session(benchmark, cp, device, team or Team())
    except failures as error:
        first_line = str(error).strip().splitlines()[0]
        raise ProgramError(f"CUDA failed: {first_line}.") from error


def use_connections(number: int) -> None:
    """Set how many hardware queues CUDA makes for streams; call it before there is a context.

    Raises
    ------
    UsageError
        CUDA takes no such number.
    """
    if number > MAX_CONNECTIONS:
        raise UsageError(f"--connections may be {MAX_CONNECTIONS} at most.")
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(number)


def refuse_blocking_launches(environment: Mapping[str, str]) -> None:
    """Raise UsageError if the environment makes every launch wait for its end."""
    if environment.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}:
        raise UsageError(
            "CUDA_LAUNCH_BLOCKING is set, which makes every launch wait: nothing could overlap. "
            "Unset it."
        )
