"""The ground that causes stand on: calls, regions, and what held work up, of one trace.

:class:`Region` is what a finding can be about: the instances of a range (outermost NVTX ranges
first) on one device. :class:`Case` adds the kinds of API calls, the regions, and the time during
which work that was ready had not been launched yet because the launching thread was in a certain
call. All analyzers of causes share one case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.analysis import Options
from gpuscope.communication import WAITS
from gpuscope.intervals import (
    BLOCK_ROWS,
    Axis,
    Cover,
    Disjoint,
    added,
    distinct,
    expanded,
    intersect,
    length,
    run_starts,
    stable_order,
    subtract,
    sum_by,
    union,
    union_sorted,
)
from gpuscope.latest import Latest
from gpuscope.loops import MIN_TURNS, NUMBER, loop_name, turns
from gpuscope.model.classes import CLASSES, CODE, ENGINE_CODES
from gpuscope.model.result import Finding
from gpuscope.model.tables import START_END, ApiCalls, MpiCalls, Operations, Ranges, in_classes
from gpuscope.model.trace import Trace
from gpuscope.scopes import Paths, in_domains, matches, open_before
from gpuscope.waits import REASON, Bool, Int32, Int64, UInt8, Waits, call_name

SMALL_REGION_SHARE = 0.01
"""Ranges with less than this share of the device's work and span are not looked at one by one."""
USES = ("ranges", "mpi", "syncs", "event_records", "kernel_configs", "stacks")
"""Tables that a case looks at where the trace has them, for `Analyzer.uses`."""
LEVELS = 3
"""How deep ranges are looked into: the outermost, and two levels of ranges inside them."""
NARROW_SHARE = 0.80
"""Ranges inside another are named instead of it if they account for this share of its time."""
EXAMPLES = 3
"""How many of the worst cases a finding shows."""
BLOCKING_SHARE = 0.80
"""A call that covers this share of its copy blocked the host; one that returned early did not."""
PROMPT_NS = 50_000
"""A launch that follows a call within this time followed at once, also in an interpreter."""
MAX_POLL_GAP_NS = 100_000
"""Queries of a stream or event that follow each other within this time are one wait."""
MAX_READ_BYTES = 64 * 1024
"""A copy to the host up to this size is a read of a result, not part of a pipeline."""
CODE_LOADS = re.compile(r"cu(da)?(Module|Library)Load\w*|cuLinkCreate|cuLinkComplete")
"""Calls that load finished code."""
MIN_COMPILING_NS = 1_000_000
"""A shorter stretch is no compilation: loading alone takes tens of microseconds."""
LIBRARY_FILES = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen")
"""Source files that are not the program's own."""
SYSTEM_MODULES = re.compile(
    r"lib(cuda|cudart|cupti|ToolsInjection|Tools|c|pthread|python)[.\d-]|[/\\]python[\d.]*$|^\[|^\?$"
)
"""Modules of CUDA, the profiler, the C library and the interpreter."""
SYSTEM_FUNCTIONS = re.compile(r"0x|cuda[A-Z]|cu[A-Z]|_start$|__libc")
"""Functions of CUDA itself, linked into a program, and frames without a name."""
MIN_KEPT_BACK_NS = 50_000
"""A driver that sends launches at once lets an idle GPU begin within a tenth of this time."""
MIN_BURSTS = 10
"""Fewer idle stretches than these with work kept back may have another reason."""
LIBRARY_DOMAINS = frozenset({"NCCL", "NVSHMEM", "CCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT"})
"""NVTX domains whose ranges are a library's own, not the program's phases."""

FRAME_PREFIX = "gs:"
"""What the names of ranges begin with that frame the passes of a gpuscope benchmark. They are no
phases of their own, and looked at only where they are asked for."""

_IS_ENGINE = np.isin(np.arange(len(CLASSES)), list(ENGINE_CODES))
COPY_CODES = tuple(CODE[name] for name in ("h2d", "d2h", "p2p"))
HIDEABLE = ("kernel", "comm", "h2d", "d2h", "p2p")
"""The classes that programs mean to run beside each other."""
MATERIAL_SHARE = 0.05
"""Classes with less than this share of the region's busy time are nothing to hide or hide under."""

# API calls

CALL_KINDS: Mapping[str, re.Pattern[str]] = {
    "wait": re.compile(r"cu(da)?(Stream|Event|Device|Ctx|Thread)Synchronize"),
    "poll": re.compile(r"cu(da)?(Stream|Event)Query"),
    "copy": re.compile(r"cu(da)?Memcpy(?!.*Async)\w*"),
    "copy-async": re.compile(r"cu(da)?Memcpy\w*Async\w*"),
    "allocate": re.compile(
        r"cuda(Malloc|MallocHost|MallocPitch|MallocManaged|Malloc3D|MallocArray|Malloc3DArray"
        r"|HostAlloc|Free|FreeHost|FreeArray|HostRegister|HostUnregister)"
        r"|cuMem(Alloc|AllocPitch|AllocManaged|AllocHost|HostAlloc|Free|FreeHost|HostRegister"
        r"|HostUnregister)"
        r"|cu(Module|Library)(Load|Unload)\w*"
    ),
    "launch": re.compile(
        r"cu(da)?(Launch\w*Kernel\w*|GraphLaunch|Memset\w*Async|EventRecord\w*|StreamWaitEvent)"
    ),
}
"""Kinds of API calls by name, without version and stream suffixes; the first that fits."""


def code_loads(api: ApiCalls, strings: Sequence[str]) -> Int64:
    """Return the calls that load finished code: rows of `api`."""
    names = [i for i, text in enumerate(strings) if CODE_LOADS.fullmatch(call_name(text))]
    return np.flatnonzero(np.isin(api.name, names)) if names else np.empty(0, np.int64)


@dataclass(frozen=True)
class Calls:
    """Calls of one thread, sorted by start: arrays alike in shape."""

    rows: Int64
    """What they are: rows of Trace.api, or of Trace.mpi."""
    start_ns: Int64
    end_ns: Int64
    block_end_ns: Int64 | None = None
    """Where calls that follow each other count as one: the end of the last, for each."""

    @cached_property
    def reach_ns(self) -> Int64:
        """The last end so far."""
        rising = (self.end_ns[1:] >= self.end_ns[:-1]).all()
        return self.end_ns if rising else np.maximum.accumulate(self.end_ns)

    def near(self, stretches: Disjoint) -> Calls:
        """Return the calls that can have time in some stretches; only these are looked at."""
        low = np.searchsorted(self.reach_ns, stretches[0], side="right")
        high = np.searchsorted(self.start_ns, stretches[1])
        low[1:] = np.maximum(low[1:], high[:-1])
        return self.take(expanded(low, np.maximum(low, high)))

    def take(self, at: npt.NDArray[Any]) -> Calls:
        """Return some of the calls, by mask or index."""
        block_end_ns = None if self.block_end_ns is None else self.block_end_ns[at]
        return Calls(self.rows[at], self.start_ns[at], self.end_ns[at], block_end_ns)


@dataclass(frozen=True, slots=True)
class Windows:
    """Times during which something waited for the launch of an operation: arrays alike in shape."""

    operation: Int64
    """Index into Trace.operations."""
    start_ns: Int64
    end_ns: Int64

    def take(self, rows: Bool) -> Windows:
        """Return some of the windows."""
        return Windows(self.operation[rows], self.start_ns[rows], self.end_ns[rows])


@dataclass(frozen=True, slots=True)
class Held:
    """What calls of the launching threads cover of some windows."""

    held_ns: int
    """Time, in any window, during which the window's thread was in one of the calls."""
    calls: Int64
    """Rows of Trace.api (or of the intervals asked for), longest holdup first."""
    call_held_ns: Int64
    """Part of the holdups that each call covers."""
    operations: Int64
    """The operation, of the longest holdup in each call: index into Trace.operations."""
    times: tuple[Int64, Int64]
    """When any thread was held up: disjoint intervals."""


@dataclass(frozen=True)
class Region:
    """What a finding is about: the instances of one range on one device, or what no range covers.

    Attributes
    ----------
    device
        Index into Trace.devices.
    level
        Nesting level of the range; 0 also for what no range covers.
    number
        Number of the region in its level.
    rows
        Indices into Trace.operations, by (instance, start).
    first
        Where each instance begins in `rows`.
    """

    device: int
    name: str | None
    level: int
    number: int
    rows: Int64
    first: Int64
    ops: Operations
    single_engine: bool
    device_busy: Callable[[int], Cover]
    """The time in which anything runs on a device, whatever range it belongs to."""
    turns_ns: Int64 | None = None
    """Of a loop, when each turn begins; it is one instance."""

    @property
    def instances(self) -> int:
        """Number of instances with operations on the device."""
        return len(self.first)

    def often(self, repeats: int) -> int:
        """Return how many cases make a pattern: `repeats` an instance, or one every second turn."""
        if self.turns_ns is None:
            return repeats * self.instances
        return max(repeats, (len(self.turns_ns) + 1) // 2)

    @cached_property
    def instance(self) -> Int32:
        """Number of the instance of each row."""
        sizes = np.diff(np.append(self.first, len(self.rows)))
        return np.repeat(np.arange(len(self.first), dtype=np.int32), sizes)

    @cached_property
    def begin_ns(self) -> Int64:
        """Start of each instance's first operation."""
        return np.minimum.reduceat(self.ops.start_ns[self.rows], self.first)

    @cached_property
    def finish_ns(self) -> Int64:
        """End of each instance's last operation."""
        return np.maximum.reduceat(self.ops.end_ns[self.rows], self.first)

    @cached_property
    def window_ns(self) -> tuple[int, int]:
        """First start and last end of all instances."""
        return int(self.begin_ns.min()), int(self.finish_ns.max())

    @cached_property
    def span_ns(self) -> int:
        """Sum of the instances' spans."""
        return int((self.finish_ns - self.begin_ns).sum())

    @cached_property
    def _busy_ns(self) -> dict[int, int]:
        """Busy time of every engine class present, by code, and with any of them busy, at -1."""
        axis = Axis.lay_out(self.begin_ns, self.finish_ns)
        codes = [-1, *(code for code in distinct(self.op_class) if code in ENGINE_CODES)]
        busy, reach = dict.fromkeys(codes, 0), dict.fromkeys(codes, -1)
        for low in range(0, len(self.rows), BLOCK_ROWS):
            part = slice(low, low + BLOCK_ROWS)
            rows, op_class = self.rows[part], self.op_class[part]
            shift = axis.shift[self.instance[part]]
            start, end = self.ops.start_ns[rows] + shift, self.ops.end_ns[rows] + shift
            for code in codes:
                mine = np.flatnonzero(_IS_ENGINE[op_class] if code < 0 else op_class == code)
                if len(mine):
                    own, reach[code] = added(start[mine], end[mine], reach[code])
                    busy[code] += int(own.sum())
        return busy

    @cached_property
    def op_class(self) -> UInt8:
        """Class code of each row."""
        return self.ops.op_class[self.rows]

    @cached_property
    def busy_ns(self) -> int:
        """Time with any engine busy, summed over the instances."""
        return self._busy_ns[-1]

    @cached_property
    def foreign_ns(self) -> int:
        """Time in the span in which only other ranges' work runs on the device."""
        covered = self.device_busy(self.device).within(self.begin_ns, self.finish_ns)
        return max(0, int(covered.sum()) - self.busy_ns)

    @cached_property
    def idle_ns(self) -> int:
        """Rest of the span, in which nothing runs on the device."""
        return self.span_ns - self.busy_ns - self.foreign_ns

    @cached_property
    def class_busy_ns(self) -> dict[str, int]:
        """Busy time of every engine class present."""
        return {CLASSES[code]: busy for code, busy in self._busy_ns.items() if code >= 0}

    @cached_property
    def class_count(self) -> dict[str, int]:
        """Number of operations of every class present."""
        counts = np.bincount(self.op_class, minlength=len(CLASSES)).tolist()
        return {name: counts[code] for code, name in enumerate(CLASSES) if counts[code]}

    @cached_property
    def material(self) -> tuple[str, ...]:
        """The classes worth hiding: at least MATERIAL_SHARE of the busy time."""
        return tuple(
            name
            for name, busy in self.class_busy_ns.items()
            if name in HIDEABLE and busy > 0 and busy >= MATERIAL_SHARE * self.busy_ns
        )

    @cached_property
    def material_streams(self) -> int:
        """Number of streams that hold work of the material classes."""
        codes = [CODE[name] for name in self.material]
        return len(np.unique(self.ops.stream[self.rows[in_classes(self.op_class, codes)]]))

    @cached_property
    def fullest_streams_ns(self) -> int:
        """Work of each instance's fullest stream, summed: less time its order does not allow."""
        _, stream = np.unique(self.ops.stream[self.rows], return_inverse=True)
        count = int(stream.max(initial=0)) + 1
        work = sum_by(
            self.ops.end_ns[self.rows] - self.ops.start_ns[self.rows],
            self.instance * np.int64(count) + stream,
            self.instances * count,
        )
        return int(work.reshape(-1, count).max(axis=1).sum())

    @cached_property
    def cycles(self) -> float:
        """How often an instance goes from copying in, out or across to computing, on average."""
        kind = np.zeros(len(self.rows), np.int8)
        kind[in_classes(self.op_class, COPY_CODES)] = 1
        kind[self.op_class == CODE["kernel"]] = 2
        kept = np.flatnonzero(kind)
        same = self.instance[kept[1:]] == self.instance[kept[:-1]]
        turns = same & (kind[kept[:-1]] == 1) & (kind[kept[1:]] == 2)
        return int(turns.sum()) / max(1, self.instances)

    @cached_property
    def meant_to_overlap(self) -> bool:
        """Two material classes in two streams or more, or a repeated copy/kernel pattern in one."""
        if len(self.material) < 2:
            return False
        return self.material_streams >= 2 or self.cycles >= 2

    @cached_property
    def engines_ns(self) -> dict[str, int]:
        """Busy time of every engine: a class, or both copy directions where they share one."""
        return self.engines_of(self.class_busy_ns)

    def engines_of(self, class_ns: Mapping[str, int]) -> dict[str, int]:
        """Return the time of every engine, given that of every class."""
        engines = dict(class_ns)
        if self.single_engine and "h2d" in engines and "d2h" in engines:
            engines["h2d"] += engines.pop("d2h")
        return engines

    @cached_property
    def bound_ns(self) -> int:
        """Busy time of the busiest engine: a floor of the span if the chunks are independent."""
        return max(self.engines_ns.values(), default=0)

    @cached_property
    def chunks(self) -> float:
        """Pieces an instance is cut into: operations of the material class that has fewest."""
        counts = [self.class_count[name] for name in self.material]
        return max(1.0, min(counts, default=1) / max(1, self.instances))

    @cached_property
    def unhidden_ns(self) -> int:
        """Busy time that perfect overlap of independent chunks would save, idle time apart."""
        return max(0, self.potential_ns - self.idle_ns)

    @cached_property
    def potential_ns(self) -> int:
        """What perfect overlap of independent chunks would save.

        The span without what belongs to other ranges, less what is left if all overlaps.
        """
        return self.saved_if(self.engines_ns)

    def saved_if(self, engines_ns: Mapping[str, int]) -> int:
        """Return what perfect overlap would save if the engines were busy for so long.

        What is left is the busiest engine, and what the first and last of n chunks cannot hide: an
        n-th of the other engines' time.
        """
        bound = max(engines_ns.values(), default=0)
        rest = sum(engines_ns.values()) - bound
        return max(0, self.span_ns - self.foreign_ns - bound - int(rest / self.chunks))


class Case:
    """One trace as the causes see it; :meth:`of` keeps the last one, which all analyzers share."""

    def __init__(self, trace: Trace, options: Options) -> None:
        self.trace = trace
        self.options = options
        self.ops = trace.operations or Operations.empty()
        self.api = trace.api or ApiCalls.empty()
        self.waits = Waits.of(trace)
        self._busy: dict[int, Cover] = {}
        self._gaps: dict[int, tuple[Int64, Int64, Int64]] = {}
        self._outside: dict[int, Calls] = {}
        self._places: list[tuple[Int32, Int32]] = []
        self._intervals: dict[tuple[tuple[str, ...], int], Calls] = {}

    @classmethod
    def of(cls, trace: Trace, options: Options) -> Case:
        """Return the case of `trace`, the same object while the same trace and ranges are asked."""
        what = (options.ranges, options.domains, options.categories, options.by_path)
        asked = (*what, options.window_ns, options.attribute)
        return _CASES.get((trace,), asked, lambda: cls(trace, options))

    # Calls

    @cached_property
    def call_kind(self) -> npt.NDArray[np.int8]:
        """Kind of each API call: position in CALL_KINDS, -1 for any other."""
        kind = np.full(len(self.trace.strings), -1, np.int8)
        for index in np.unique(self.api.name).tolist():
            text = call_name(self.trace.strings[index])
            for code, pattern in enumerate(CALL_KINDS.values()):
                if pattern.fullmatch(text):
                    kind[index] = code
                    break
        return kind[self.api.name]

    @cached_property
    def api_reach_ns(self) -> Int64:
        """Until when this API call and those that began before it last; rising."""
        return np.maximum.accumulate(self.api.end_ns)

    @cached_property
    def launch_thread(self) -> Int32:
        """Thread of each operation's launching call; -1 without one."""
        thread = np.full(len(self.ops), -1, np.int32)
        known = self.ops.launch >= 0
        if len(self.api):
            thread[known] = self.api.thread[self.ops.launch[known]]
        return thread

    def calls_of(self, kinds: tuple[str, ...], thread: int) -> Calls:
        """Return a thread's calls of some kinds.

        Polls that follow each other are one wait, from the start of the first, whose row stands
        for it, to the end of the last.
        """
        key = (kinds, thread)
        if key not in self._intervals:
            mine = np.flatnonzero(self.api.thread == thread)
            kind = self.call_kind.take(mine)
            wanted = np.flatnonzero(np.isin(kind, [self.kind_code(name) for name in kinds]))
            rows, poll = mine.take(wanted), kind.take(wanted) == self.kind_code("poll")
            start, end = self.api.start_ns.take(rows), self.api.end_ns.take(rows)
            goes_on = np.zeros(len(rows), np.bool_)
            goes_on[1:] = poll[1:] & poll[:-1] & (np.diff(wanted) == 1)
            goes_on[1:] &= start[1:] - end[:-1] <= MAX_POLL_GAP_NS
            first = np.flatnonzero(~goes_on)
            last = np.append(first[1:], len(rows)) - 1
            self._intervals[key] = Calls(rows[first], start[first], end[last[: len(first)]])
        return self._intervals[key]

    def kind_code(self, kind: str) -> int:
        """Return the code of a kind of calls in `call_kind`."""
        return list(CALL_KINDS).index(kind)

    def launching_calls(self, operations: Int64, thread: int) -> Calls:
        """Return the calls of a thread that launched some operations."""
        rows = np.unique(self.ops.launch[operations])
        return self.calls_at(rows[rows >= 0].astype(np.int64), thread)

    def calls_at(self, rows: Int64, thread: int) -> Calls:
        """Return those of some API calls, sorted by start, that a thread made."""
        rows = rows[self.api.thread[rows] == thread]
        return Calls(rows, self.api.start_ns[rows], self.api.end_ns[rows])

    @cached_property
    def sent_in_bursts(self) -> Int64:
        """Operations that the driver kept back while the GPU was idle; none but under Windows."""
        windows = "windows" in (self.trace.system or "").lower()
        return self.kept_back if windows else np.empty(0, np.int64)

    @cached_property
    def kept_back(self) -> Int64:
        """Operations that did not begin on an idle GPU, though nothing held them.

        They were launched, and all they waited for was over, long before they started; and so it
        was with at least half of the GPU's idle stretches: there are none otherwise.
        """
        nothing = np.empty(0, np.int64)
        kept_back: list[Int64] = []
        stretches = 0
        for device in range(len(self.trace.devices)):
            start, end, after = self._device_gaps(device)
            after = after[end - start >= MIN_KEPT_BACK_NS]
            stretches += len(after)
            ready = np.maximum(self.waits.ready_ns[after], self.waits.call_end_ns[after])
            known = self.waits.call_end_ns[after] >= 0
            kept_back.append(after[known & (self.ops.start_ns[after] - ready >= MIN_KEPT_BACK_NS)])
        rows = np.sort(np.concatenate(kept_back)) if kept_back else nothing
        return rows if 2 * len(rows) >= max(stretches, 2 * MIN_BURSTS) else nothing

    @cached_property
    def blocking_copies(self) -> Bool:
        """Copies whose launching call lasted until they were nearly over: it blocked the host."""
        ops, waits = self.ops, self.waits
        copies = in_classes(ops.op_class, COPY_CODES) & (waits.call_start_ns >= 0)
        shared = np.minimum(ops.end_ns, waits.call_end_ns) - np.maximum(
            ops.start_ns, waits.call_start_ns
        )
        return copies & (shared >= BLOCKING_SHARE * (ops.end_ns - ops.start_ns)) & (shared > 0)

    @cached_property
    def reads(self) -> tuple[Bool, Int64]:
        """The small copies to the host that its thread waits for, and the waits: rows of Trace.api.

        It waits in the copy's own call, or in a wait or query right behind it.
        """
        ops, api = self.ops, self.api
        small = (ops.op_class == CODE["d2h"]) & (ops.size_bytes <= MAX_READ_BYTES)
        rows = np.flatnonzero(small & (ops.launch >= 0))
        call = ops.launch[rows]
        waited = self.blocking_copies[rows] | (self.call_kind[call] == self.kind_code("copy"))
        behind: list[Int64] = []
        for thread in distinct(api.thread[call]):
            mine = np.flatnonzero(api.thread[call] == thread)
            waits = self.calls_of(("wait", "poll"), thread)
            if not len(waits.rows):
                continue
            at = np.searchsorted(waits.start_ns, api.end_ns[call[mine]])
            wait = np.minimum(at, len(waits.rows) - 1)
            follows = (at < len(waits.rows)) & (waits.end_ns[wait] >= ops.end_ns[rows[mine]])
            follows &= waits.start_ns[wait] - api.end_ns[call[mine]] <= PROMPT_NS
            waited[mine] |= follows
            behind.append(waits.rows[wait[follows]])
        reads = np.zeros(len(ops), np.bool_)
        reads[rows[waited]] = True
        return reads, np.unique(np.concatenate(behind)) if behind else np.empty(0, np.int64)

    @cached_property
    def code_loads(self) -> Int64:
        """Calls that load finished code: rows of Trace.api."""
        return code_loads(self.api, self.trace.strings)

    def compiling(self, windows: Windows) -> Bool:
        """Return which windows are long, and hold a load of code by the thread that ends them."""
        loading = np.zeros(len(windows.operation), np.bool_)
        long = windows.end_ns - windows.start_ns >= MIN_COMPILING_NS
        thread = self.launch_thread[windows.operation]
        for number in distinct(self.api.thread[self.code_loads]):
            times = self.api.start_ns[self.code_loads[self.api.thread[self.code_loads] == number]]
            mine = np.flatnonzero(long & (thread == number))
            low = np.searchsorted(times, windows.start_ns[mine])
            loading[mine] = np.searchsorted(times, windows.end_ns[mine]) > low
        return loading

    # Regions

    @cached_property
    def _labels(self) -> tuple[npt.NDArray[Any], Sequence[str]]:
        """The label of each range, by name or by path as asked for, and the labels' texts."""
        ranges, strings = self.trace.ranges, self.trace.strings
        if ranges is None:
            return np.empty(0, np.int64), strings
        if self.options.by_path:
            paths = Paths(ranges, strings)
            return paths.number, paths.texts
        return ranges.name, strings

    @cached_property
    def _bare_label(self) -> Int64:
        """A number of each range's label, the same for those that differ in numbers alone."""
        label, texts = self._labels
        bare: dict[str, int] = {}
        numbers = np.zeros(len(texts), np.int64)
        for one in distinct(label):
            numbers[one] = bare.setdefault(NUMBER.sub("", texts[one]), len(bare))
        return numbers.take(label)

    @cached_property
    def _program_ranges(self) -> Int64:
        """Rows of the ranges that findings may name: those of the program itself."""
        ranges, strings = self.trace.ranges, self.trace.strings
        if ranges is None:
            return np.empty(0, np.int64)
        mask = (ranges.end_ns >= 0) & in_domains(self.trace, self.options)
        if not self.options.domains:
            library = [i for i, text in enumerate(strings) if text in LIBRARY_DOMAINS]
            mask &= ~np.isin(ranges.domain, library)
        if not self.options.ranges:
            frames = [i for i, text in enumerate(strings) if text.startswith(FRAME_PREFIX)]
            mask &= ~np.isin(ranges.name, frames)
        if self.options.ranges:
            label, texts = self._labels
            wanted = [i for i, text in enumerate(texts) if matches(text, self.options.ranges)]
            mask &= np.isin(label, wanted)
        return np.flatnonzero(mask)

    @cached_property
    def _level(self) -> Int64:
        """Level of each of the program's ranges; -1 for what is nested too deep to be looked at.

        Ranges that are pushed and popped come first, by depth. Those that are started and ended
        nest in nothing: they follow, on as many levels as are open at once.
        """
        ranges = self.trace.ranges
        assert ranges is not None
        ranges = ranges.take(self._program_ranges)
        paired = ranges.kind == START_END
        level = np.empty(len(ranges), np.int64)
        pushed = ranges.take(~paired) if paired.any() else ranges
        level[~paired] = open_before(pushed)
        level[~paired & (level >= LEVELS)] = -1
        lane = _lanes(ranges.take(paired))
        first = int(level[~paired].max(initial=-1)) + 1
        level[paired] = np.where(lane < LEVELS, first + lane, -1)
        return level

    def by_process(self, level: int) -> bool:
        """Whether the ranges of a level take the launches of all threads of their process."""
        if self.options.attribute == "process" or self.trace.ranges is None:
            return True
        rows = self._program_ranges[self._level == level]
        return bool((self.trace.ranges.kind[rows] == START_END).any())

    def _covering(self, level: int, operations: Int64 | None = None) -> Int32:
        """Return, an operation, or each of some, the range of `level` it was launched in, or -1."""
        some = slice(None) if operations is None else operations
        ranges = self.trace.ranges
        if ranges is None or not len(self._program_ranges):
            return np.full(len(self.waits.call_start_ns[some]), -1, np.int32)
        rows = self._program_ranges[self._level == level]
        return self._launched_in(ranges, rows, self.by_process(level), some)

    def _launched_in(
        self, ranges: Ranges, rows: Int64, by_process: bool, some: slice | Int64
    ) -> Int32:
        """Return, each of some operations, which of some ranges it was launched in, or -1.

        The ranges of a thread, or process, are in order. Where some overlap, as those of two
        domains or two threads may, it is the last begun of those that are open.
        """
        launch = self.waits.call_start_ns[some]
        covering = np.full(len(launch), -1, np.int32)
        owner = ranges.process if by_process else ranges.thread
        unit = (self.ops.process if by_process else self.launch_thread)[some]
        for number in distinct(owner[rows]):
            of_unit = rows[owner[rows] == number]
            mine = np.flatnonzero((unit == number) & (launch >= 0))
            at = np.searchsorted(ranges.start_ns[of_unit], launch[mine], side="right") - 1
            end = ranges.end_ns[of_unit]
            beyond = _beyond(end)
            while len(mine):
                mine, at = mine[at >= 0], at[at >= 0]
                inside = launch[mine] < end[at]
                covering[mine[inside]] = of_unit[at[inside]]
                mine, at = mine[~inside], beyond[at[~inside]]
        return covering

    @cached_property
    def levels(self) -> tuple[tuple[Region, ...], ...]:
        """The regions of every level, the outermost first, in order of time."""
        deepest = int(self._level.max(initial=0)) if self.trace.ranges is not None else 0
        return tuple(self._regions_of(level) for level in range(deepest + 1))

    @cached_property
    def _loop_windows(self) -> tuple[Ranges, tuple[str, ...], tuple[Int64, ...]]:
        """The loops of outermost ranges, each as one range from the first to the last.

        Then names, in which the name of a loop is a place, and when the turns of each loop begin.
        There are none in a trace of a benchmark, whose passes are measured apart on purpose.
        """
        ranges, strings = self.trace.ranges, self.trace.strings
        if ranges is None or any(
            strings[name].startswith(FRAME_PREFIX) for name in distinct(ranges.name)
        ):
            return Ranges.empty(), (), ()
        rows = self._program_ranges[self._level == 0]
        owner = (ranges.process if self.by_process(0) else ranges.thread)[rows]
        label, texts = self._labels
        names: dict[str, int] = {}
        first: list[int] = []
        ends: list[int] = []
        named: list[int] = []
        turns_ns: list[Int64] = []
        for number in distinct(owner):
            mine = rows[owner == number]
            for begin, last, period in turns(self._bare_label[mine]):
                one, at = np.unique(label[mine[begin : last + 1]], return_index=True)
                told = [texts[each] for each in one[np.argsort(at)].tolist()]
                first.append(int(mine[begin]))
                ends.append(int(ranges.end_ns[mine[last]]))
                named.append(names.setdefault(loop_name(told), len(names)))
                turns_ns.append(ranges.start_ns[mine[begin : last + 1 : period]])
        windows = replace(
            ranges.take(np.array(first, np.int64)),
            end_ns=np.array(ends, np.int64),
            name=np.array(named, np.int32),
        )
        return windows, tuple(names), tuple(turns_ns)

    @cached_property
    def loops(self) -> tuple[Region, ...]:
        """The regions of the loops whose steps are ranges: all that their threads launched there.

        Loops of one name are instances of one region. Small ones are left out.
        """
        windows, names, begins = self._loop_windows
        level = len(self.levels)
        if not len(windows):
            return ()
        every = np.arange(len(windows))
        covering = self._launched_in(windows, every, self.by_process(0), slice(None))
        least = SMALL_REGION_SHARE * int(np.ptp(np.append(self.ops.start_ns, self.ops.end_ns)))
        return tuple(
            replace(region, turns_ns=self._turns_of(region, covering, begins))
            for region in self._build(level, covering >= 0, covering, windows.name, names)
            if region.span_ns >= least
        )

    def _turns_of(self, region: Region, loop: Int32, begins: Sequence[Int64]) -> Int64:
        """Return when the turns of a region begin, from its first to its last in each of its loops.

        `loop` is that of each operation. Turns on other devices or outside the window asked for are
        not the region's.
        """
        launch = self.waits.call_start_ns[region.rows]
        found = []
        lows = np.minimum.reduceat(launch, region.first).tolist()
        highs = np.maximum.reduceat(launch, region.first).tolist()
        for at, low, high in zip(
            loop[region.rows[region.first]].tolist(), lows, highs, strict=True
        ):
            first, end = np.searchsorted(begins[at], [low, high], side="right")
            found.append(begins[at][first - 1 : end])
        return np.sort(np.concatenate(found))

    @cached_property
    def outermost_range(self) -> Int32:
        """Of each operation, the outermost range it was launched in: row of Trace.ranges, or -1."""
        return self._covering(0)

    def in_other_ranges(self, before: Int64, after: Int64) -> Bool:
        """Return which pairs of operations the program put into ranges of different names.

        The outermost ranges that they do not share decide. A loop's repetitions share the name, but
        perhaps for a number in it.
        """
        other = np.zeros(len(before), np.bool_)
        open_ = np.ones(len(before), np.bool_)
        label = self._bare_label
        for level in range(len(self.levels) if self.trace.ranges is not None else 0):
            a, b = self._covering(level, before), self._covering(level, after)
            differ = open_ & (a != b)
            named = differ & (a >= 0) & (b >= 0)
            other[named] = label[a[named]] != label[b[named]]
            open_ &= ~differ
        return other

    def label_of(self, row: int) -> str:
        """Return the label of a range: its name, or its path where paths were asked for."""
        label, texts = self._labels
        return str(texts[label[row]])

    def windows_of(self, region: Region) -> tuple[Int64, Int64, Int32]:
        """Return start, end and thread of the ranges of a region's label, level and process."""
        ranges = self.trace.ranges
        empty = np.empty(0, np.int64)
        if ranges is None or region.name is None:
            return empty, empty, np.empty(0, np.int32)
        if region.level == len(self.levels):
            loops, names, _ = self._loop_windows
            loops = loops.take(loops.name == names.index(region.name))
            loops = loops.take(loops.process == self.trace.devices[region.device].process)
            return loops.start_ns, loops.end_ns, loops.thread
        label, texts = self._labels
        rows = self._program_ranges[self._level == region.level]
        rows = rows[ranges.process[rows] == self.trace.devices[region.device].process]
        rows = rows[label[rows] == texts.index(region.name)]
        return ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows]

    def _regions_of(self, level: int) -> tuple[Region, ...]:
        covering = self._covering(level) if level else self.outermost_range
        considered = np.ones(len(covering), np.bool_)
        if level or self.options.ranges:  # what no range covers was not asked for
            considered = covering >= 0
        label, texts = self._labels
        return self._build(level, considered, covering, label, texts)

    def _build(
        self,
        level: int,
        considered: Bool,
        covering: Int32,
        label: npt.NDArray[Any],
        texts: Sequence[str],
    ) -> tuple[Region, ...]:
        """Return the regions of a level: of the operations, where considered, by what covers them.

        `label` is the place in `texts` of the name of what covers.
        """
        ops, ranges = self.ops, self.trace.ranges
        owner = np.full(len(ops), -1, np.int32)
        place = np.full(len(ops), -1, np.int32)
        self._places.append((owner, place))
        considered = considered & in_classes(ops.op_class, ENGINE_CODES)
        if self.options.window_ns:
            low, high = self.options.window_ns
            considered &= (ops.start_ns < high) & (ops.end_ns > low)
        rows = np.flatnonzero(considered)
        if not len(rows):
            return ()
        # Cells, numbered by device and instance. What no range covers has negative numbers: it is
        # cut where any range begins.
        instance = covering.take(rows)
        outside = np.flatnonzero(instance < 0)
        if ranges is not None and len(outside):
            begins = np.sort(ranges.start_ns[self._program_ranges])
            launch = self.waits.call_start_ns[rows[outside]]
            time = np.where(launch >= 0, launch, ops.start_ns[rows[outside]])
            instance[outside] = -1 - np.searchsorted(begins, time, side="right")
        lowest = int(instance.min())
        width = int(instance.max()) - lowest + 1
        cell: npt.NDArray[Any] = instance - lowest
        if width * len(self.trace.devices) >= 1 << 31:
            cell = cell.astype(np.int64)
        cell += ops.device.take(rows).astype(cell.dtype) * width
        del covering, instance, outside
        # Rows are in order of their starts: a stable sort keeps them so within each cell.
        order = stable_order(cell)
        rows, cell = rows.take(order), cell.take(order)
        first = run_starts(cell)
        sizes = np.diff(np.append(first, len(rows)))
        device, number = np.divmod(cell[first].astype(np.int64), width)
        del order, cell
        number += lowest
        named = np.full(len(number), -1, np.int64)
        named[number >= 0] = label[number[number >= 0]]
        if level == 0:
            named = self._pool_small(rows, first, device, named)
        order = np.lexsort((number, named, device))
        if (order[1:] < order[:-1]).any():
            sizes, device, named = sizes[order], device[order], named[order]
            before = np.cumsum(sizes) - sizes
            rows = rows.take(np.repeat(first[order] - before, sizes) + np.arange(len(rows)))
            first = before
        opens = np.flatnonzero(
            (np.diff(device, prepend=-1) != 0) | (np.diff(named, prepend=-2) != 0)
        )
        closes = np.append(opens[1:], len(sizes))
        region_of = np.repeat(np.arange(len(opens), dtype=np.int32), closes - opens)
        owner[rows] = np.repeat(region_of, sizes)
        place[rows] = np.repeat((np.arange(len(sizes)) - opens[region_of]).astype(np.int32), sizes)
        ends = np.append(first[1:], len(rows))
        regions = [
            Region(
                device=int(device[begin]),
                name=texts[named[begin]] if named[begin] >= 0 else None,
                level=level,
                number=region,
                rows=rows[first[begin] : ends[stop - 1]],
                first=first[begin:stop] - first[begin],
                ops=ops,
                single_engine=self.trace.devices[device[begin]].copy_engines == 1,
                device_busy=self._device_busy,
            )
            for region, (begin, stop) in enumerate(zip(opens, closes, strict=True))
        ]
        return tuple(sorted(regions, key=lambda region: (region.device, region.window_ns)))

    def _pool_small(self, rows: Int64, first: Int64, device: Int64, named: Int64) -> Int64:
        """Give ranges too small to matter to the device as a whole; instances stay apart.

        Cells begin at `first` in `rows`; `device` and `named` are theirs. Returns the new names.
        """
        end = self.ops.end_ns.take(rows)
        span = np.maximum.reduceat(end, first) - self.ops.start_ns[rows[first]]
        end -= self.ops.start_ns.take(rows)
        work = np.add.reduceat(end, first)
        names = len(self._labels[1]) + 1
        entry = device * names + named + 1
        small = np.ones(len(named), np.bool_)
        for amount in (span, work):
            of_entry = sum_by(amount, entry, names * len(self.trace.devices))
            of_device = of_entry.reshape(-1, names).sum(axis=1).repeat(names)
            small &= (of_entry < SMALL_REGION_SHARE * of_device)[entry]
        return np.where(small, -1, named)

    def instance_of(self, region: Region, operations: Int64) -> Int64:
        """Return the instance in `region` of each of some operations of it."""
        return self._places[region.level][1][operations].astype(np.int64)

    def search(self, rule: Callable[[Region], Finding | None]) -> tuple[Finding, ...]:
        """Apply a rule to every region, loops first, then the outermost ranges.

        A finding stands for all that lies inside its region, unless ranges nested there account for
        most of the time it names: then these are named instead, but not each step of a loop.
        """
        found: list[Finding] = []
        reported = np.zeros(len(self.ops), np.bool_)
        for level, regions in ((-1, self.loops), *enumerate(self.levels)):
            for region in regions:
                if reported[region.rows].any():
                    continue
                finding = rule(region)
                if finding is not None:
                    found += self._narrowed(rule, region, finding, level + 1)
                    reported[region.rows] = True
        return tuple(found)

    def _narrowed(
        self, rule: Callable[[Region], Finding | None], region: Region, finding: Finding, level: int
    ) -> list[Finding]:
        """Return the findings of the ranges nested in a region, or its own if these say less."""
        whole = _named_ns(finding)
        for deeper in range(level, len(self.levels) if whole else 0):
            numbers = self._places[deeper][0][region.rows]
            inside = np.bincount(numbers[numbers >= 0], minlength=len(self.levels[deeper]))
            nested: list[Finding] = []
            for inner in self.levels[deeper]:
                if inner.name is not None and inside[inner.number] == len(inner.rows):
                    part = rule(inner)
                    if part is not None:
                        nested += self._narrowed(rule, inner, part, deeper + 1)
            if (
                len(nested) < MIN_TURNS
                and sum(_named_ns(part) for part in nested) >= NARROW_SHARE * whole
            ):
                return nested
        return [finding]

    # What held work up

    def late(self, region: Region) -> Windows:
        """Return the operations of a region that were launched late, and from when to when.

        From when the GPU could have begun each, nothing of its class still running, or else from
        the instance's first start, until its launching call began.
        """
        waits, rows = self.waits, region.rows
        start = np.maximum(waits.ready_ns[rows], waits.turn_ns[rows])
        start = np.maximum(start, region.begin_ns[region.instance])
        end = waits.call_start_ns[rows]
        # What the nodes of a graph waited for is not in the trace.
        told = (waits.reason[rows] == REASON["host"]) | (self.ops.graph_node[rows] < 0)
        late = told & (end > start)
        return Windows(rows[late], start[late], end[late])

    def messages(self, region: Region) -> Bool:
        """Return which operations of a region are messages. A wait for a signal is none.

        NVSHMEM waits in a kernel of its own, for as long as another rank takes, and moves nothing.
        """
        found: Bool = region.op_class == CODE["comm"]
        name = self.ops.name[region.rows]
        waits = [each for each in distinct(name[found]) if WAITS.search(self.trace.strings[each])]
        return found & ~np.isin(name, waits)

    def idle(self, region: Region) -> Windows:
        """Return the times at which the device was idle because the host was late.

        Each stretch in which nothing ran on the device, within an instance, that the start of an
        operation of the region ended whose launch was still to come when it began. None where the
        driver sends launches in bursts, for there the GPU is idle whatever the host does.
        """
        if len(self.sent_in_bursts):
            nothing = np.empty(0, np.int64)
            return Windows(nothing, nothing, nothing)
        gap_start, gap_end, next_op = self._device_gaps(region.device)
        owner, _ = self._places[region.level]
        mine = np.flatnonzero(owner[next_op] == region.number)
        next_op, gap_start, gap_end = next_op[mine], gap_start[mine], gap_end[mine]
        inside = gap_start >= region.begin_ns[self.instance_of(region, next_op)]
        late = self.waits.call_start_ns[next_op] > gap_start
        late |= (self.waits.reason[next_op] == REASON["host"]) & (self.ops.launch[next_op] >= 0)
        kept = inside & late & (self.launch_thread[next_op] >= 0)
        return Windows(next_op[kept], gap_start[kept], gap_end[kept])

    def under_no_kernel(self, region: Region, times: Disjoint) -> Disjoint:
        """Return the part of some times in which no kernel ran on the region's device."""
        ops = self.ops
        kernels = np.flatnonzero((ops.device == region.device) & (ops.op_class == CODE["kernel"]))
        return subtract(times, union(ops.start_ns[kernels], ops.end_ns[kernels]))

    def _device_busy(self, device: int) -> Cover:
        """Return the time in which anything runs on a device."""
        if device not in self._busy:
            ops = self.ops
            rows = np.flatnonzero((ops.device == device) & in_classes(ops.op_class, ENGINE_CODES))
            rows = rows[ops.end_ns[rows] > ops.start_ns[rows]]
            self._busy[device] = Cover(union_sorted(ops.start_ns[rows], ops.end_ns[rows]))
        return self._busy[device]

    def _device_gaps(self, device: int) -> tuple[Int64, Int64, Int64]:
        """Return starts and ends of a device's idle stretches, and the operation after each."""
        if device not in self._gaps:
            ops = self.ops
            rows = np.flatnonzero(
                (ops.device == device)
                & in_classes(ops.op_class, ENGINE_CODES)
                & (ops.end_ns > ops.start_ns)
            )
            reach = np.maximum.accumulate(ops.end_ns[rows])
            after = np.flatnonzero(ops.start_ns[rows[1:]] > reach[:-1]) + 1
            self._gaps[device] = (reach[after - 1], ops.start_ns[rows[after]], rows[after])
        return self._gaps[device]

    def held_by(self, windows: Windows, calls: Callable[[int], Calls]) -> Held:
        """Find how much of the windows the calls of the launching threads cover.

        `calls` gives the calls in question of a thread. A call counts if the launch that ends the
        window follows soon after its return, or that of its block's last: if the host did something
        else for longer than the call held work up, that is what the launch waited for.
        """
        thread = self.launch_thread[windows.operation]
        total = 0
        found: list[Int64] = []
        times: list[Int64] = []
        for number in distinct(thread):
            mine = np.flatnonzero(thread == number)
            mine = mine[np.argsort(windows.end_ns[mine], kind="stable")]
            late = union(windows.start_ns[mine], windows.end_ns[mine])
            near = calls(number).near(late)
            call_start, call_end = near.start_ns, near.end_ns
            held = Cover(late).within(call_start, call_end)
            # The operation whose window ends first after the call began.
            at = np.searchsorted(windows.end_ns[mine], call_start, side="right")
            next_one = mine[np.minimum(at, len(mine) - 1)]
            launch = self.waits.call_start_ns[windows.operation[next_one]]
            after = launch - (call_end if near.block_end_ns is None else near.block_end_ns)
            some = np.flatnonzero((held > 0) & (after <= np.maximum(held, PROMPT_NS)))
            covered = intersect(late, union(call_start[some], call_end[some]))
            total += length(covered)
            times.append(np.stack(covered))
            operation = windows.operation[next_one[some]]
            found.append(np.stack([near.rows[some], held[some], operation]))
        joined = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
        joined = joined[:, np.lexsort((joined[0], -joined[1]))]
        start, end = np.concatenate([np.empty((2, 0), np.int64), *times], axis=1)
        return Held(total, joined[0], joined[1], joined[2], union(start, end))

    def without_calls(self, windows: Windows) -> tuple[Int64, Int64, Int64]:
        """Return the parts of the windows in which the thread was in no CUDA or MPI call.

        Thread, start and end of each.
        """
        thread = self.launch_thread[windows.operation]
        found: list[Int64] = []
        for number in distinct(thread):
            mine = thread == number
            late = union(windows.start_ns[mine], windows.end_ns[mine])
            near = self._all_calls(number).near(late)
            rest = subtract(late, (near.start_ns, near.end_ns))
            found.append(np.stack([np.full(len(rest[0]), number), *rest]))
        joined = np.concatenate(found, axis=1) if found else np.empty((3, 0), np.int64)
        return joined[0], joined[1], joined[2]

    def begun_in(self, windows: Windows, kinds: tuple[str, ...]) -> tuple[Int64, Int64]:
        """Return the call of some kinds that each window's thread was in when it began.

        Row of Trace.api, -1 for none, and how long the call took.
        """
        call, took = np.full(len(windows.operation), -1), np.zeros(len(windows.operation), np.int64)
        thread = self.launch_thread[windows.operation]
        for number in distinct(thread):
            calls = self.calls_of(kinds, number)
            mine = np.flatnonzero(thread == number)
            at = np.searchsorted(calls.start_ns, windows.start_ns[mine], side="right") - 1
            mine, at = mine[at >= 0], at[at >= 0]
            inside = calls.end_ns[at] >= windows.start_ns[mine]
            mine, at = mine[inside], at[inside]
            call[mine], took[mine] = calls.rows[at], calls.end_ns[at] - calls.start_ns[at]
        return call, took

    def in_mpi(self, windows: Windows) -> Bool:
        """Return which windows hold an MPI call of their thread: what was waited for is sent."""
        inside = np.zeros(len(windows.operation), np.bool_)
        mpi = self.trace.mpi
        if mpi is None:
            return inside
        thread = self.launch_thread[windows.operation]
        for number in np.unique(mpi.thread).tolist():
            times = mpi.start_ns[mpi.thread == number]
            mine = np.flatnonzero(thread == number)
            low = np.searchsorted(times, windows.start_ns[mine])
            inside[mine] = np.searchsorted(times, windows.end_ns[mine]) > low
        return inside

    def _all_calls(self, thread: int) -> Calls:
        """Return the times a thread was in CUDA or MPI calls, merged."""
        if thread not in self._outside:
            mine = self.api.thread == thread
            start, end = self.api.start_ns, self.api.end_ns
            if not mine.all():
                start, end = start[mine], end[mine]
            mpi = self.trace.mpi
            if mpi is not None:
                mine = mpi.thread == thread
                start = np.concatenate([start, mpi.start_ns[mine]])
                end = np.concatenate([end, mpi.end_ns[mine]])
            start, end = union(start, end)
            no_rows = np.broadcast_to(np.int64(-1), len(start))
            self._outside[thread] = Calls(no_rows, start, end)
        return self._outside[thread]

    def at_stake(self, region: Region, held: Held, *, repeats: int, share: float) -> int | None:
        """Return what ending a holdup would save; None where it is rare or too short.

        It saves no more than perfect overlap would; `share` is the least part of the span.
        """
        saving = min(held.held_ns, region.potential_ns)
        often = len(held.calls) >= region.often(repeats)
        return saving if often and saving >= share * region.span_ns else None

    # Findings

    def calls_evidence(self, rows: Int64) -> list[dict[str, Any]]:
        """Return name, thread and count of API calls, most frequent first.

        With ``at``, where call stacks were recorded: the places in the program that call them.
        """
        pairs, at, counts = np.unique(
            np.stack([self.api.name[rows], self.api.thread[rows]]),
            axis=1,
            return_inverse=True,
            return_counts=True,
        )
        listed: list[dict[str, Any]] = []
        for number, (name, thread) in enumerate(pairs.T.tolist()):
            entry = {
                "name": call_name(self.trace.strings[name]),
                "thread": self.trace.threads[thread].tid,
                "count": int(counts[number]),
            }
            places = self._places_of(rows[at.ravel() == number])
            listed.append({**entry, "at": places} if places else entry)
        return sorted(listed, key=lambda entry: (-entry["count"], entry["name"], entry["thread"]))

    @cached_property
    def _caller(self) -> dict[int, str]:
        """Of each API call with a stack, the place in the program that made it."""
        stacks = self.trace.stacks
        if stacks is None:
            return {}
        strings = self.trace.strings
        frames: dict[int, list[tuple[str, str, int]]] = {}
        columns = (stacks.call, stacks.function, stacks.file, stacks.line)
        for call, function, file, line in zip(*(c.tolist() for c in columns), strict=True):
            frames.setdefault(call, []).append((strings[function], strings[file], line))
        return {call: place for call, stack in frames.items() if (place := own_frame(stack))}

    def _places_of(self, calls: Int64) -> list[dict[str, Any]]:
        counts: dict[str, int] = {}
        for call in calls.tolist() if self._caller else ():
            if call in self._caller:
                counts[self._caller[call]] = counts.get(self._caller[call], 0) + 1
        listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [{"place": place, "count": count} for place, count in listed[:EXAMPLES]]

    def held_evidence(self, held: Held) -> dict[str, Any]:
        """Return counts, calls and the worst examples of a holdup."""
        return {
            "held_ns": held.held_ns,
            "count": len(held.calls),
            "calls": self.calls_evidence(held.calls),
            "examples": self.held_examples(held, self.api),
        }

    def held_examples(self, held: Held, calls: ApiCalls | MpiCalls) -> list[dict[str, Any]]:
        """Return the worst examples of a holdup, whose calls are rows of `calls`."""
        return [
            {
                "operation": operation,
                "start_ns": int(self.ops.start_ns[operation]),
                "held_ns": held_ns,
                "call": call_name(self.trace.strings[calls.name[call]]),
                "call_start_ns": int(calls.start_ns[call]),
            }
            for call, held_ns, operation in zip(
                held.calls[:EXAMPLES].tolist(),
                held.call_held_ns[:EXAMPLES].tolist(),
                held.operations[:EXAMPLES].tolist(),
                strict=True,
            )
        ]

    def operation_examples(self, rows: Int64, cost_ns: Int64) -> list[dict[str, Any]]:
        """Return the operations that cost most."""
        worst = np.lexsort((rows, -cost_ns))[:EXAMPLES]
        return [
            {"operation": row, "start_ns": int(self.ops.start_ns[row]), "cost_ns": cost}
            for row, cost in zip(rows[worst].tolist(), cost_ns[worst].tolist(), strict=True)
        ]

    def finding(
        self,
        region: Region,
        *,
        id: str,
        claim: str,
        mechanism: str,
        advice: str,
        evidence: Mapping[str, Any],
        removable: str = "if-independent",
        severity: str = "warning",
        saving_ns: int | None = None,
        limit_ns: int | None = None,
        held: tuple[Int64, Int64] | None = None,
    ) -> Finding:
        """Return a finding about `region`, with its window and figures in the evidence.

        `limit_ns` is the most that a repair of this kind could save there, whatever it held up,
        and `held` are starts and ends of what it held up.
        """
        device = self.trace.devices[region.device]
        common = {
            "window_ns": list(region.window_ns),
            "instances": region.instances,
            "span_ns": region.span_ns,
            "busy_ns": region.busy_ns,
            "bound_ns": region.bound_ns,
        }
        if limit_ns is not None:
            common["limit_ns"] = limit_ns
        return Finding(
            id=id,
            severity=severity,
            process=self.trace.processes[device.process].pid,
            device=device.number,
            range=region.name,
            claim=claim,
            mechanism=mechanism,
            removable=removable,
            evidence={**common, **evidence},
            advice=advice,
            saving_ns=saving_ns,
            held=held,
        )


def own_frame(stack: Sequence[tuple[str, str, int]]) -> str | None:
    """Return the innermost frame of a stack that is the program's own, as ``file:line (function)``.

    `stack` holds (function, file, line), the innermost first. Of Python's frames those of installed
    packages do not count unless there are no others; of native ones those of CUDA, the profiler and
    the interpreter never do.
    """
    python = [frame for frame in stack if frame[2] >= 0]
    if python:
        own = (frame for frame in python if not LIBRARY_FILES.search(frame[1]))
        function, file, line = next(own, python[0])
        return f"{file}:{line} ({function})"
    native = [
        (function, file)
        for function, file, _ in stack
        if not SYSTEM_MODULES.search(file) and not SYSTEM_FUNCTIONS.match(function)
    ]
    if not native:
        return None
    programs = (frame for frame in native if not LIBRARY_FILES.search(frame[1]))
    function, file = next(programs, native[0])
    return f"{file.rpartition('/')[2]} ({function})"


def _named_ns(finding: Finding) -> int:
    """Return the time that a finding is about."""
    return int(finding.evidence.get("held_ns") or finding.saving_ns or 0)


def _lanes(ranges: Ranges) -> Int64:
    """Put each range on the first lane of its process that is free when it starts.

    Those that find none of the first LEVELS lanes free are on lane LEVELS.
    """
    lane = np.full(len(ranges), LEVELS)
    for process in distinct(ranges.process):
        rest = np.flatnonzero(ranges.process == process)
        for number in range(LEVELS):
            if not len(rest):
                break
            start, end = ranges.start_ns[rest], ranges.end_ns[rest]
            # The first is on the lane; after one that is, the next that starts when it is over.
            following = np.maximum(np.searchsorted(start, end), np.arange(1, len(rest) + 1))
            chain, jump = np.zeros(1, np.int64), np.append(following, len(rest))
            while chain[-1] < len(rest):
                chain = np.concatenate([chain, jump[chain]])
                jump = jump[jump]
            mine = np.zeros(len(rest) + 1, np.bool_)
            mine[chain] = True
            lane[rest[mine[:-1]]] = number
            rest = rest[~mine[:-1]]
    return lane


def _beyond(end: Int64) -> Int64:
    """Return, of ranges in order of their starts, the last before each that ends later, or -1."""
    beyond = np.full(len(end), -1)
    if (end[1:] >= end[:-1]).all():
        return beyond
    ends: list[int] = end.tolist()
    still: list[int] = []
    for number, each in enumerate(ends):
        while still and ends[still[-1]] <= each:
            still.pop()
        if still:
            beyond[number] = still[-1]
        still.append(number)
    return beyond


def names_of(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the names in a list of call evidence, as a phrase: ``cudaFree and cudaMalloc``."""
    names = list(dict.fromkeys(str(entry["name"]) for entry in calls))
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_CASES: Latest[Case] = Latest()
