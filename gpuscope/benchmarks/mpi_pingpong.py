"""``mpi-pingpong``: a message between two GPUs and back, through the host and past it.

Rank 0 sends from its GPU to the other rank's, which sends it back, again and again: half of a round
trip is what a message takes. ::

    staged            [d2h ===][MPI ========][h2d ===]          one after the other

    staged-pipelined  [d2h0][d2h1]  [d2h2]  …
                            [MPI 0 ][MPI 1 ][MPI 2 ] …          in chunks
                                    [h2d0]  [h2d1]  [h2d2]

    device            [MPI ===]                                 an MPI that takes device buffers

Beside it the same messages go from host to host: copy out, that, and copy in, each alone, are the
least that the staged path can take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    NOT_JUDGED,
    Benchmark,
    Expected,
    ExpectedPeak,
    Pass,
    Quantity,
    Ranks,
    Result,
    Session,
    Statistics,
    Twin,
    buffer_limit_bytes,
    chosen_options,
    device_mpi,
    format_size,
    link_between,
    open_ranks,
    positive_int,
    raise_if_wrong,
    rate_bytes_per_s,
    size_argument,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_ns, format_rate

HOST, STAGED, PIPELINED, DEVICE = "host", "staged", "staged-pipelined", "device"
PATHS = (STAGED, PIPELINED, DEVICE)
"""Each is measured with those before it, which it is compared with."""
_MAX_SIZE = 4 * MIB
_STEP = 4
_CHUNKS = 4
"""Each costs a launch and a wait on either side."""
_MIN_PIPELINED_BYTES = 256 << 10
"""Below, a chunk is copied faster than the copy is launched."""
_MAX_ROUNDS = 50
_MIN_ROUNDS = 5
_BYTES_A_PASS = 8 * MIB
_REPEATS = 10
_TAG = 7
_BLOCK = 256
_DEFAULTS = MappingProxyType(
    {"path": PIPELINED, "max_size": _MAX_SIZE, "chunks": _CHUNKS, "partner": 1, "probed": False}
)

_SOURCE = r"""
__device__ unsigned char byte_at(unsigned long long position) {
    return (unsigned char)((position * 2654435761ull) >> 13);
}
// Writes the pattern from position `first` on, each bit turned round where `flip` is 255.
extern "C" __global__ void pingpong_fill(unsigned char* data, unsigned long long first,
                                         unsigned long long count, unsigned char flip) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < count) data[i] = byte_at(first + i) ^ flip;
}
// Counts the bytes that are not the pattern.
extern "C" __global__ void pingpong_check(const unsigned char* data, unsigned long long first,
                                          unsigned long long count, unsigned long long* wrong) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < count && data[i] != byte_at(first + i)) atomicAdd(wrong, 1ull);
}
"""


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run; ``probed`` says that an earlier run found the MPI to take device buffers."""

    path: str
    max_size: int
    chunks: int
    partner: int
    probed: bool


def sizes_up_to(max_size: int) -> list[int]:
    """Return the sizes of the messages, in bytes: from 1 on, each four times the one before."""
    sizes, size = [], 1
    while size < max_size:
        sizes.append(size)
        size *= _STEP
    return [*sizes, max_size]


def rounds_of(size: int) -> int:
    """Return the round trips of a pass: many of a short message, whose time the clock's step is."""
    return max(_MIN_ROUNDS, min(_MAX_ROUNDS, _BYTES_A_PASS // size))


def is_pipelined(size: int, chunks: int) -> bool:
    """Say whether a message is long enough to be cut into `chunks`."""
    return size >= _MIN_PIPELINED_BYTES and size % chunks == 0


def staged_bound_ns(d2h_ns: int, host_ns: int, h2d_ns: int) -> int:
    """Return the least time of a staged message: copy out, message, copy in, one after another."""
    return d2h_ns + host_ns + h2d_ns


def pipelined_bound_ns(d2h_ns: int, host_ns: int, h2d_ns: int, chunks: int) -> int:
    """Return the least time of a message cut into `chunks`, if these cost nothing by themselves.

    The first chunk passes all three stages, the others follow at the pace of the slowest.
    """
    slowest = max(d2h_ns, host_ns, h2d_ns)
    return round((d2h_ns + host_ns + h2d_ns + (chunks - 1) * slowest) / chunks)


def hidden_limit(copy_ns: float, host_ns: float, chunks: int) -> float:
    """Return the largest share of a message's copies out, or in, that MPI can hide.

    The first chunk's copy out and the last one's copy in have no message beside them; each of the
    others has one, which hides as much of it as it lasts.
    """
    return (chunks - 1) / chunks * min(1.0, host_ns / copy_ns)


_Way = Callable[[int, int], None]
"""Sends or receives a message: its device address, and its bytes."""


class _Side:
    """One of the two ranks: its buffers, and how it sends and receives."""

    def __init__(self, ranks: Ranks, peer: int, max_size: int, chunks: int) -> None:
        import numpy as np

        cp = self.cp = ranks.session.cp
        self.ranks, self.peer, self.chunks = ranks, peer, chunks
        self.leads = ranks.rank == 0
        self.length = max(size * rounds_of(size) for size in sizes_up_to(max_size))
        self.source, self.target = (cp.empty(self.length, np.uint8) for _ in range(2))
        self.out, self.into = (
            np.frombuffer(cp.cuda.alloc_pinned_memory(max_size), np.uint8, max_size)
            for _ in range(2)
        )
        for each in (self.out, self.into):
            each.fill(0)
        self.stream = cp.cuda.Stream(non_blocking=True)
        module = cp.RawModule(code=_SOURCE)
        self._fill, self._check = (
            module.get_function(name) for name in ("pingpong_fill", "pingpong_check")
        )
        self._wrong = cp.zeros(1, np.uint64)
        self._first = self._checked = 0
        self._pending = 0
        """Bytes that the last pass left in `target`, and that were not compared yet."""

    # ── the data ────────────────────────────────────────────────────────────────────────────────

    def prepare(self, count: int) -> None:
        """Compare what the last pass left; make new data of `count` bytes, and spoil the target."""
        self._compare()
        self._first += self.length
        if self.leads:
            self._launch(self._fill, self.source, self._first, count, _byte(0))
        # Turned round, no byte is right by chance.
        self._launch(self._fill, self.target, self._first, count, _byte(255))
        self._pending = count
        self.cp.cuda.runtime.deviceSynchronize()

    def _compare(self) -> None:
        if self._pending:
            self._launch(self._check, self.target, self._first, self._pending, self._wrong)
            self._checked += self._pending
            self._pending = 0

    def check(self) -> None:
        """Compare all that has arrived since the last check.

        Raises
        ------
        ProgramError
            Some bytes differ; the message begins with ``wrong data``.
        """
        self._compare()
        raise_if_wrong(self._wrong.get().tolist(), self._checked, "buffer")

    def _launch(self, kernel: Any, data: Any, first: int, count: int, last: Any) -> None:
        import numpy as np

        arguments = (data, np.uint64(first), np.uint64(count), last)
        kernel((-(-count // _BLOCK),), (_BLOCK,), arguments)

    # ── the ways ────────────────────────────────────────────────────────────────────────────────

    def ping_pong(self, size: int, send: _Way, receive: _Way) -> Callable[[], None]:
        """Return what does the round trips of a pass; every message has a place of its own."""
        places = [index * size for index in range(rounds_of(size))]

        def lead() -> None:
            for place in places:
                send(self.source.data.ptr + place, size)
                receive(self.target.data.ptr + place, size)

        def answer() -> None:
            for place in places:
                receive(self.target.data.ptr + place, size)
                send(self.target.data.ptr + place, size)

        return lead if self.leads else answer

    def send_host(self, _address: int, size: int) -> None:
        """Send what lies on the host."""
        with self._range("Send", size):
            self.ranks.comm.Send(self.out[:size], self.peer, _TAG)

    def receive_host(self, _address: int, size: int) -> None:
        """Receive to the host."""
        with self._range("Recv", size):
            self.ranks.comm.Recv(self.into[:size], self.peer, _TAG)

    def send_staged(self, address: int, size: int) -> None:
        """Copy to the host, wait, send."""
        self.copy_out(address, 0, size)
        self.stream.synchronize()
        self.send_host(address, size)

    def receive_staged(self, address: int, size: int) -> None:
        """Receive to the host, copy to the GPU, wait."""
        self.receive_host(address, size)
        self.copy_in(address, 0, size)
        self.stream.synchronize()

    def send_pipelined(self, address: int, size: int) -> None:
        """Send chunk after chunk; the next one is copied to the host while MPI is at work.

        The message is begun, the copy launched, and only then the message waited for: so that the
        copy, which is far the shorter, runs while the host is in MPI, and not before.
        """
        chunk = size // self.chunks
        self.copy_out(address, 0, chunk)
        for start in range(0, size, chunk):
            self.stream.synchronize()
            part = self.out[start : start + chunk]
            request = self.ranks.comm.Isend(part, self.peer, _TAG)
            if start + chunk < size:
                self.copy_out(address, start + chunk, chunk)
            with self._range("Wait", chunk):
                request.Wait()

    def receive_pipelined(self, address: int, size: int) -> None:
        """Copy chunk after chunk to the GPU while the next one comes; all are expected at once."""
        chunk = size // self.chunks
        starts = range(0, size, chunk)
        requests = [
            self.ranks.comm.Irecv(self.into[start : start + chunk], self.peer, _TAG)
            for start in starts
        ]
        for start, request in zip(starts, requests, strict=True):
            with self._range("Wait", chunk):
                request.Wait()
            self.copy_in(address, start, chunk)
        self.stream.synchronize()

    def send_device(self, address: int, size: int) -> None:
        """Send from the GPU's memory."""
        with self._range("Send", size):
            self.ranks.comm.Send(self._message(address, size), self.peer, _TAG)

    def receive_device(self, address: int, size: int) -> None:
        """Receive to the GPU's memory."""
        with self._range("Recv", size):
            self.ranks.comm.Recv(self._message(address, size), self.peer, _TAG)

    def _message(self, address: int, size: int) -> list[Any]:
        mpi = self.ranks.mpi
        return [mpi.buffer.fromaddress(address, size), mpi.BYTE]

    def copy_out(self, address: int, start: int, size: int) -> None:
        """Issue the copy of a part of the message at `address` to the host."""
        runtime = self.cp.cuda.runtime
        host = self.out.ctypes.data + start
        kind = runtime.memcpyDeviceToHost
        runtime.memcpyAsync(host, address + start, size, kind, self.stream.ptr)

    def copy_in(self, address: int, start: int, size: int) -> None:
        """Issue the copy of a part of the message from the host to `address`."""
        runtime = self.cp.cuda.runtime
        host = self.into.ctypes.data + start
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(address + start, host, size, kind, self.stream.ptr)

    def _range(self, call: str, size: int) -> Any:
        return self.ranks.session.ranges.prepare(f"gs:mpi:{call}", size)


def _byte(value: int) -> Any:
    import numpy as np

    return np.uint8(value)


def plan_of(path: str, sizes: Sequence[int], chunks: int) -> list[tuple[str, int]]:
    """Return path and size of each pass: of every size all paths up to `path`, and the host's."""
    names = (HOST, *PATHS[: PATHS.index(path) + 1])
    return [
        (name, size)
        for size in sizes
        for name in names
        if name != PIPELINED or is_pipelined(size, chunks)
    ]


def _passes(side: _Side | None, plan: Sequence[tuple[str, int]], twin: str | None) -> list[Pass]:
    """Return the passes; a rank that only looks on has empty ones."""
    if side is None:
        return [Pass(pass_name(*each), [], lambda: None, waits=True) for each in plan]
    return [_pass(side, path, size, unpipelined=twin == STAGED) for path, size in plan]


def _pass(side: _Side, path: str, size: int, *, unpipelined: bool) -> Pass:
    ways: dict[str, tuple[_Way, _Way]] = {
        HOST: (side.send_host, side.receive_host),
        STAGED: (side.send_staged, side.receive_staged),
        PIPELINED: (side.send_pipelined, side.receive_pipelined),
        DEVICE: (side.send_device, side.receive_device),
    }
    ping_pong = side.ping_pong(size, *ways[STAGED if path == PIPELINED and unpipelined else path])
    count = size * rounds_of(size)
    # The first messages of a size find nothing of it in the processors' caches, and what is to be
    # compared follows on them: so they are sent once more, untimed.
    prepare = ping_pong if path == HOST else lambda: side.prepare(count)
    return Pass(pass_name(path, size), [side.stream], ping_pong, waits=True, prepare=prepare)


def pass_name(path: str, size: int) -> str:
    """Return the name of the pass of a path and size: ``staged 4M``."""
    return f"{path} {format_size(size)}"


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    if options.max_size % options.chunks:
        raise UsageError(f"--max-size must be a multiple of --chunks, {options.chunks}.")
    with open_ranks(BENCHMARK.name, oversubscribe=arguments.oversubscribe) as ranks:
        if options.partner >= ranks.size:
            raise UsageError(
                f"there is no rank {options.partner}: --partner is 1 to {ranks.size - 1}."
            )
        if options.path == DEVICE and not options.probed:
            device_mpi.require(ranks, device_mpi.SENDRECV, STAGED)
        return _measure(ranks, options, twin, arguments)


def _measure(
    ranks: Ranks, options: _Options, twin: str | None, arguments: argparse.Namespace
) -> Result:
    """Measure, and put the result together."""
    limit = buffer_limit_bytes(
        ranks.session, device_buffers=2 * _MIN_ROUNDS, host_buffers=2 * ranks.local_size
    )
    if options.max_size > limit:
        raise UsageError(
            f"messages of {format_size(options.max_size)} do not fit: the buffers may take 25 % of "
            f"the free device memory and 12 % of the host's: use `--max-size {limit >> 20}M`."
        )
    peer = {0: options.partner, options.partner: 0}.get(ranks.rank)
    side = None if peer is None else _Side(ranks, peer, options.max_size, options.chunks)
    sizes = sizes_up_to(options.max_size)
    plan = plan_of(options.path, sizes, options.chunks)
    corrupt = None
    if side is not None and side.leads and twin == CORRUPT.name:
        corrupt = side.target[: plan[-1][1] * rounds_of(plan[-1][1])]
    measured = ranks.session.measure(
        _passes(side, plan, twin),
        arguments.reps,
        check=side.check if side else _nothing,
        corrupt=corrupt,
    )
    copies = _copy_times(ranks, side, sizes)
    figures = _figures(measured.passes, plan, copies, options.chunks)
    buses = ranks.gather(ranks.session.pci_bus_id)
    link = link_between(buses[0], buses[options.partner])
    size = options.max_size
    host_ns = figures[f"host_{format_size(size)}_half_ns"]
    assert host_ns is not None  # every size is sent from host to host
    expected = _expected(options, twin, copies[size], host_ns)
    if arguments.oversubscribe:
        expected = [unjudged(each) for each in expected]
    return ranks.session.conclude(
        measured,
        twin=twin,
        options={**asdict(options), "probed": options.path == DEVICE},
        stages={
            f"{name}_{format_size(size)}_ns": time_ns
            for size in sizes
            for name, time_ns in zip(("d2h", "h2d"), copies[size], strict=True)
        },
        figures=figures,
        quantities=_quantities(figures, options, link.limit_bytes_per_s, str(link)),
        expected=expected,
        title=f"rank 0 and rank {options.partner}, {link}, up to {format_size(options.max_size)}",
        lines=_lines(figures, sizes),
        notes=_notes(figures, sizes),
    )


def _nothing() -> None:
    """Check the data of a rank that only looks on."""


def _copy_times(
    ranks: Ranks, side: _Side | None, sizes: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return of each size the times of a copy out and of one in, alone; of both ranks the longer.

    In ns.
    """
    own = [[0, 0] for _ in sizes] if side is None else [_copies_of(side, size) for size in sizes]
    longest = ranks.largest([time_ns for pair in own for time_ns in pair])
    return dict(zip(sizes, zip(longest[::2], longest[1::2], strict=True), strict=True))


def _copies_of(side: _Side, size: int) -> list[int]:
    session: Session = side.ranks.session
    found = []
    for copy in (side.copy_out, side.copy_in):
        operation = lambda copy=copy: copy(side.target.data.ptr, 0, size)  # noqa: E731
        (spans,) = session.time_operations([(side.stream, [operation] * (1 + _REPEATS))])
        found.append(Statistics.of([end - start for start, end in spans[1:]]).median_ns)
    return found


def _figures(
    passes: Mapping[str, Statistics],
    plan: Sequence[tuple[str, int]],
    copies: Mapping[int, tuple[int, int]],
    chunks: int,
) -> dict[str, float | None]:
    """Return half a round trip of each path and size, its rate, and the least it can take."""
    figures: dict[str, float | None] = {}
    for path, size in plan:
        half_ns = passes[pass_name(path, size)].median_ns / (2 * rounds_of(size))
        name = f"{path.replace('-', '_')}_{format_size(size)}"
        figures[f"{name}_half_ns"] = half_ns
        figures[f"{name}_rate_bytes_per_s"] = rate_bytes_per_s(size, round(half_ns))
        if path == HOST:
            d2h_ns, h2d_ns = copies[size]
            host_ns = round(half_ns)
            figures[f"staged_{format_size(size)}_bound_ns"] = staged_bound_ns(
                d2h_ns, host_ns, h2d_ns
            )
            if is_pipelined(size, chunks):
                figures[f"staged_pipelined_{format_size(size)}_bound_ns"] = pipelined_bound_ns(
                    d2h_ns, host_ns, h2d_ns, chunks
                )
    return figures


def _quantities(
    figures: Mapping[str, float | None],
    options: _Options,
    link_limit: float | None,
    link: str,
) -> list[Quantity]:
    """Return the longest message of each path beside what limits it."""
    size = format_size(options.max_size)
    rows = [
        Quantity(
            f"{path}, {size}", figures[f"{name}_half_ns"], "ns", figures[f"{name}_bound_ns"], source
        )
        for path, name, source in (
            (STAGED, f"staged_{size}", "copy out + MPI on the host + copy in"),
            (PIPELINED, f"staged_pipelined_{size}", f"the same in {options.chunks} chunks"),
        )
        if f"{name}_half_ns" in figures
    ]
    if options.path == DEVICE:
        rate = figures[f"device_{size}_rate_bytes_per_s"]
        rows.append(Quantity(f"{DEVICE}, {size}", rate, "bytes/s", link_limit, link))
    return rows


def _expected(
    options: _Options, twin: str | None, copies_ns: tuple[int, int], host_ns: float
) -> list[Expected | ExpectedPeak]:
    """Return what the trace must show of the longest message of each path.

    `copies_ns` are the times of its copy out and of its copy in, `host_ns` that of the message from
    host to host, each as a whole and alone.
    """
    names = {path: pass_name(path, options.max_size) for path in PATHS}
    copies = dict(zip(("d2h", "h2d"), copies_ns, strict=True))
    rows: list[Expected | ExpectedPeak] = [
        Expected(names[STAGED], copy, "mpi", "serialized", 1.0) for copy in copies
    ]
    if options.path != STAGED and is_pipelined(options.max_size, options.chunks):
        for copy, copy_ns in copies.items():
            limit = hidden_limit(copy_ns, host_ns, options.chunks)
            if twin == STAGED:
                row = Expected(names[PIPELINED], copy, "mpi", "serialized", 1.0)
            else:
                row = Expected(names[PIPELINED], copy, "mpi", "overlapped", limit)
            rows.append(row)
    if options.path == DEVICE:
        # Peer copies, or none where the MPI copies by itself: but nothing through the host.
        rows += [ExpectedPeak(names[DEVICE], copy, 0, 0) for copy in copies]
    return rows


def unjudged(row: Expected | ExpectedPeak) -> Expected:
    """Return a row that anything meets: ranks that share a GPU say nothing of two."""
    if isinstance(row, Expected):
        return Expected(row.range, row.a, row.b, NOT_JUDGED, None)
    return Expected(row.range, row.op_class, "mpi", NOT_JUDGED, None)


_COLUMNS = (
    ("host", "host_{}_half_ns"),
    ("d2h+host+h2d", "staged_{}_bound_ns"),
    ("staged", "staged_{}_half_ns"),
    ("pipelined", "staged_pipelined_{}_half_ns"),
    ("device", "device_{}_half_ns"),
)


def _lines(figures: Mapping[str, float | None], sizes: Sequence[int]) -> list[str]:
    """Return half a round trip of every size and path, and the rate of the fastest through GPUs."""
    titles = "".join(f"{title:>14}" for title, _ in _COLUMNS)
    lines = ["half a round trip:", f"{'size':>6}{titles}{'best rate':>14}"]
    for size in sizes:
        name = format_size(size)
        times = [figures.get(key.format(name)) for _, key in _COLUMNS]
        best = min(time for time in times[2:] if time is not None)
        rate = format_rate(rate_bytes_per_s(size, round(best)))
        lines.append(f"{name:>6}{''.join(f'{format_ns(time):>14}' for time in times)}{rate:>14}")
    return lines


def _notes(figures: Mapping[str, float | None], sizes: Sequence[int]) -> list[str]:
    """Say where a staged message was faster than its parts: then one of the times is wrong."""
    notes = []
    for size in sizes:
        name = format_size(size)
        taken, bound = figures[f"staged_{name}_half_ns"], figures[f"staged_{name}_bound_ns"]
        if taken is not None and bound is not None and taken < bound:
            notes.append(
                f"staged messages of {name} took {format_ns(taken)}, less than copy out, message "
                f"and copy in take alone ({format_ns(bound)}): the machine was not steady"
            )
    return notes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.set_defaults(probed=None)  # known from a plan alone
    parser.add_argument(
        "--path",
        choices=PATHS,
        help="measure this path, and those before it (default: staged-pipelined); device needs an "
        "MPI that takes device buffers",
    )
    parser.add_argument(
        "--max-size", type=size_argument, metavar="SIZE", help="longest message (default: 4M)"
    )
    parser.add_argument(
        "--chunks",
        type=positive_int,
        metavar="N",
        help="pieces of a pipelined message (default: 4)",
    )
    parser.add_argument(
        "--partner", type=positive_int, metavar="RANK", help="rank 0's partner (default: 1)"
    )


BENCHMARK = Benchmark(
    name="mpi-pingpong",
    summary="a message between two GPUs and back: through the host, in chunks, or by MPI itself",
    options="--path PATH  --max-size SIZE  --chunks N  --partner RANK",
    needs="2 GPUs, MPI",
    twins=(
        Twin(
            STAGED,
            "the pipelined path copies and sends the message whole",
            "staged-pipelined: copies and MPI serialized",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
    of_two=True,
)
