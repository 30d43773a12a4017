"""Communication: the messages of each rank by kind, when they moved data and when they waited.

Messages are communication kernels, and copies between two GPUs. Transfer and waiting of kernels are
told apart by the reports of all ranks together, or else estimated where NCCL's payloads give
operation and bytes; a copy waits for nobody. Beside them stand the MPI calls of the host, but for
those in which the ranks meet behind a start gate. A process that only calls MPI has these alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.analysis import Analyzer, Options
from gpuscope.communication import UNFIT
from gpuscope.intervals import Cover, Int64, number_rows, sum_by, union
from gpuscope.model.classes import CODE, ENGINE_CODES
from gpuscope.model.exchange import UNKNOWN, Exchange
from gpuscope.model.result import Communication, Message, Messages, MpiCallFigures, Result
from gpuscope.model.tables import STAGED, Int32, MpiCalls, Operations
from gpuscope.model.trace import Trace
from gpuscope.scopes import behind_gates

WORST = 10
"""How many messages are listed one by one."""
_MESSAGES = (CODE["comm"], CODE["p2p"])


def run(trace: Trace, options: Options) -> Result:
    """Sum up the messages of every device, by kind, and the MPI calls of every process."""
    ops = trace.operations or Operations.empty()
    exchange = options.exchange or Exchange.unknown(len(ops))
    rows = np.flatnonzero(np.isin(ops.op_class, _MESSAGES))
    calls = trace.mpi or MpiCalls.empty()
    calls = calls.take(~behind_gates(trace, calls))
    if options.window_ns:
        low, high = options.window_ns
        rows = rows[(ops.start_ns[rows] >= low) & (ops.end_ns[rows] <= high)]
        calls = calls.take((calls.start_ns >= low) & (calls.end_ns <= high))
    communicating = set(np.unique(ops.device[rows]).tolist())
    calling = set(np.unique(calls.process).tolist())
    used = set(np.unique(ops.device).tolist())
    on_device = tuple(
        _of_device(
            trace,
            ops,
            exchange,
            number,
            rows[ops.device[rows] == number],
            calls.take(calls.process == device.process),
            options.instances,
        )
        for number, device in enumerate(trace.devices)
        if number in communicating or (number in used and device.process in calling)
    )
    working = {trace.devices[number].process for number in used}
    on_host = tuple(
        _of_host(trace, exchange, number, calls.take(calls.process == number))
        for number in sorted(calling - working)
    )
    return Result(communication=on_device + on_host)


def _of_host(trace: Trace, exchange: Exchange, number: int, calls: MpiCalls) -> Communication:
    """Sum up the MPI calls of a process that used no GPU."""
    process = trace.processes[number]
    return Communication(
        process=process.pid,
        rank=process.rank,
        device=None,
        ranks=(),
        estimated=False,
        reason=exchange.reason,
        clock=exchange.clocks.get(UNKNOWN),
        messages=(),
        worst=(),
        mpi=_calls(trace, calls, None),
    )


def _of_device(
    trace: Trace,
    ops: Operations,
    exchange: Exchange,
    number: int,
    rows: Int64,
    calls: MpiCalls,
    each: bool,
) -> Communication:
    device = trace.devices[number]
    process = trace.processes[device.process]
    every = np.flatnonzero(np.isin(ops.op_class, _MESSAGES) & (ops.device == number))
    kernels = rows[ops.op_class[rows] == CODE["comm"]]
    every = every[np.argsort(ops.launch[every], kind="stable")]
    index = np.empty(len(ops), np.int64)
    index[every] = np.arange(len(every))
    table = _Table(trace, ops, exchange, number, rows)
    return Communication(
        process=process.pid,
        rank=process.rank,
        device=device.number,
        ranks=exchange.ranks if len(kernels) else (),
        estimated=exchange.estimated and bool((exchange.transfer_ns[kernels] >= 0).any()),
        reason=exchange.reason if len(kernels) or exchange.reason in UNFIT else None,
        clock=exchange.clocks.get(number),
        messages=table.kinds(),
        worst=table.worst(index),
        mpi=_calls(trace, calls, _busy(ops, number)),
        per_message=table.all(index) if each else None,
    )


def _busy(ops: Operations, device: int) -> Cover:
    """Return when anything ran on the device."""
    engines = np.flatnonzero(np.isin(ops.op_class, ENGINE_CODES) & (ops.device == device))
    return Cover(union(ops.start_ns[engines], ops.end_ns[engines]))


def _calls(trace: Trace, calls: MpiCalls, busy: Cover | None) -> tuple[MpiCallFigures, ...]:
    """Sum up MPI calls by name: how long the device, if any, was busy and idle meanwhile."""
    work = calls.end_ns - calls.start_ns
    names, kind = np.unique(calls.name, return_inverse=True)
    size, total = (sum_by(each, kind, len(names)).tolist() for each in (calls.size_bytes, work))
    gpu_busy = [None] * len(names)
    if busy is not None:
        covered = busy.within(calls.start_ns, calls.end_ns)
        gpu_busy = sum_by(covered, kind, len(names)).tolist()
    silent = set(kind[calls.size_bytes < 0].tolist())
    counts = np.bincount(kind, minlength=len(names)).tolist()
    found = [
        MpiCallFigures(
            name=trace.strings[name],
            count=counts[at],
            size_bytes=None if at in silent else size[at],
            work_ns=total[at],
            gpu_busy_ns=gpu_busy[at],
            gpu_idle_ns=None if gpu_busy[at] is None else total[at] - gpu_busy[at],
        )
        for at, name in enumerate(names.tolist())
    ]
    return tuple(sorted(found, key=lambda each: -each.work_ns))


class _Table:
    """The messages of one device, a row each, with what lies under no kernel."""

    def __init__(
        self, trace: Trace, ops: Operations, exchange: Exchange, device: int, rows: Int64
    ) -> None:
        self._trace, self._ops, self._exchange, self._rows = trace, ops, exchange, rows
        kernels = np.flatnonzero((ops.device == device) & (ops.op_class == CODE["kernel"]))
        cover = Cover(union(ops.start_ns[kernels], ops.end_ns[kernels]))
        start, end = ops.start_ns[rows], ops.end_ns[rows]
        self._work = end - start
        self._copies = ops.op_class[rows] == CODE["p2p"]
        transfer = np.where(self._copies, self._work, exchange.transfer_ns[rows])
        self._known = transfer >= 0
        self._transfer = np.where(self._known, transfer, 0)
        self._out = (ops.flags[rows] & STAGED != 0) & (ops.size_bytes[rows] == 0)
        self._size = np.where(self._copies, self._copied(), exchange.size_bytes[rows])
        begins = np.maximum(start, end - self._transfer)
        hidden, moving = cover.within(start, end), cover.within(begins, end)
        self._exposed = self._work - hidden
        self._moving_exposed = end - begins - moving

    def _copied(self) -> Int64:
        """Return the bytes of copies; of one that the driver stages, either leg has all of them.

        The table of operations has them on the leg that arrives, so that sums count them once.
        """
        ops, rows = self._ops, self._rows
        size = np.where(self._out, -1, ops.size_bytes[rows])
        legs = np.flatnonzero((ops.flags & STAGED != 0) & (ops.launch >= 0))
        calls, of_leg = np.unique(ops.launch[legs], return_inverse=True)
        total = sum_by(ops.size_bytes[legs], of_leg, len(calls))
        total[total == 0] = -1  # the leg that arrives was not recorded
        out = np.flatnonzero(self._out & np.isin(ops.launch[rows], calls))
        size[out] = total[np.searchsorted(calls, ops.launch[rows[out]])]
        return size

    def kinds(self) -> tuple[Messages, ...]:
        """Return the sums over messages of equal communicator, kernel, operation, bytes, peer."""
        rows, exchange = self._rows, self._exchange
        communicators, of_row = np.unique(exchange.communicator[rows], return_inverse=True)
        named = (self._ops.name, exchange.calls, exchange.peer, *self._ends())
        columns = [
            of_row,
            self._size,
            *(column[rows].astype(np.int64) for column in named),
            self._out.astype(np.int64),
        ]
        kind, first = number_rows(columns)
        count = len(first)
        amounts = (
            self._work,
            self._exposed,
            self._known,
            self._transfer,
            self._work * self._known - self._transfer,
            self._moving_exposed * self._known,
            (self._exposed - self._moving_exposed) * self._known,
        )
        work, exposed, timed, *parts = (sum_by(amount, kind, count).tolist() for amount in amounts)
        late = np.zeros((count, len(exchange.ranks)), np.int64)
        delayed = np.flatnonzero(exchange.late[rows] >= 0)
        if len(exchange.ranks):
            np.add.at(late, (kind[delayed], exchange.late[rows[delayed]]), 1)
        counts = np.bincount(kind, minlength=count).tolist()
        found = []
        for at, (communicator, size, name, call, peer, *_) in enumerate(
            np.stack([column[first] for column in columns], axis=1).tolist()
        ):
            moved = [part[at] if timed[at] else None for part in parts]
            transfer, wait, transfer_exposed, wait_exposed = moved
            found.append(
                Messages(
                    communicator=_hexadecimal(int(communicators[communicator])),
                    kernel=self._trace.strings[name],
                    operation=self._operation(int(first[at]), call),
                    size_bytes=_or_none(size),
                    peer=_or_none(peer),
                    count=counts[at],
                    work_ns=work[at],
                    exposed_ns=exposed[at],
                    timed=timed[at],
                    transfer_ns=transfer,
                    wait_ns=wait,
                    transfer_exposed_ns=transfer_exposed,
                    wait_exposed_ns=wait_exposed,
                    late=self._late(int(first[at]), late[at].tolist()),
                )
            )
        return tuple(sorted(found, key=lambda each: -each.work_ns))

    def worst(self, index: Int64) -> tuple[Message, ...]:
        """Return the messages that waited longest, or took longest where waiting is not known."""
        wait = np.where(self._known, self._work - self._transfer, -1)
        order = np.lexsort((self._rows, -self._work, -wait))[:WORST].tolist()
        return tuple(self._message(at, index) for at in order)

    def all(self, index: Int64) -> tuple[Message, ...]:
        """Return every message, in the order of launches."""
        order = np.argsort(index[self._rows], kind="stable").tolist()
        return tuple(self._message(at, index) for at in order)

    def _message(self, at: int, index: Int64) -> Message:
        row, exchange = int(self._rows[at]), self._exchange
        known, transfer = bool(self._known[at]), int(self._transfer[at])
        late: dict[str, Any] = {"late": None, "late_ns": None}
        if exchange.ranks and known and not self._copies[at]:
            last = int(exchange.late[row])
            late = {
                "late": exchange.ranks[last] if last >= 0 else None,
                "late_ns": int(exchange.late_ns[row]),
            }
        return Message(
            index=int(index[row]),
            communicator=_hexadecimal(int(exchange.communicator[row])),
            kernel=self._trace.strings[int(self._ops.name[row])],
            operation=self._operation(at, int(exchange.calls[row])),
            size_bytes=_or_none(int(self._size[at])),
            start_ns=int(self._ops.start_ns[row]),
            work_ns=int(self._work[at]),
            exposed_ns=int(self._exposed[at]),
            transfer_ns=transfer if known else None,
            wait_ns=int(self._work[at]) - transfer if known else None,
            **late,
        )

    def _ends(self) -> tuple[Int32, Int32]:
        """Return, of every operation of the trace, the GPUs that it copies between."""
        return self._ops.src_device, self._ops.dst_device

    def _operation(self, at: int, call: int) -> str | None:
        if self._copies[at]:
            source, target = (int(end[self._rows[at]]) for end in self._ends())
            if self._ops.flags[self._rows[at]] & STAGED:
                half = "to" if self._out[at] else "from"
                return f"copy GPU {source} > GPU {target}, {half} the host"
            return f"copy GPU {source} > GPU {target}"
        return self._exchange.call_texts[call] if call >= 0 else None

    def _late(self, at: int, counts: list[int]) -> dict[str, int] | None:
        """Name the counts by rank; a copy waits for none."""
        if self._copies[at]:
            return None
        return dict(zip(self._exchange.ranks, counts, strict=True)) or None


def _hexadecimal(communicator: int) -> str | None:
    """Write a communicator as NCCL's own log does; None where it is not known."""
    return None if communicator == UNKNOWN else f"{communicator & (1 << 64) - 1:016x}"


def _or_none(value: int) -> int | None:
    return value if value >= 0 else None


ANALYZER = Analyzer(
    name="communication",
    summary="messages by kind: exposed, transfer and waiting time, and the ranks that came late",
    needs=(),
    uses=("operations", "api", "ranges", "mpi"),
    run=run,
)
