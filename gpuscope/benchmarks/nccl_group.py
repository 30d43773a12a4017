"""``nccl-group``: sends and receives in one NCCL group, against each by itself.

A group is one kernel, whatever is in it; without one each send and each receive is a kernel, which
waits for the one before: ::

    grouped   [send 1, send 2, recv 3, recv 4]
    single    [send 1][send 2][recv 3][recv 4]

Sends and receives by themselves can wait for each other for ever. Here all ranks issue theirs in
one common order, of which the first that is not done has both its ends there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Benchmark,
    ExpectedCount,
    Pass,
    Quantity,
    Result,
    Twin,
    check_device_bytes,
    chosen_options,
    format_size,
    positive_int,
    rate_bytes_per_s,
    size_argument,
)
from gpuscope.benchmarks._harness.collectives import (
    ELEMENT_BYTES,
    FLOAT32,
    ROOT,
    Buffers,
    Part,
    group,
)
from gpuscope.benchmarks._harness.nccl import narrowest_link, nccl_settings, nvls_note
from gpuscope.benchmarks._harness.ranks import Ranks, open_ranks

FORMS = ("send-recv", "scatter", "broadcast", "grid")
_UNGROUPED = "ungrouped"
_DEFAULTS = MappingProxyType({"size_bytes": MIB, "messages": 4, "in_a_row": 5})


@dataclass(frozen=True, slots=True)
class Message:
    """One send and its receive: from rank to rank, and which part of what is sent."""

    source: int
    target: int
    part: int


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    size_bytes: int
    messages: int
    in_a_row: int


def grid_of(ranks: int) -> tuple[int, int]:
    """Return columns and rows of the most nearly square grid of all ranks."""
    rows = max(each for each in range(1, ranks + 1) if ranks % each == 0 and each * each <= ranks)
    return ranks // rows, rows


def messages_of(form: str, ranks: int, repeat: int) -> list[Message]:
    """Return the messages of a form in the order in which all ranks may issue them singly.

    - ``send-recv``: each rank to the next.
    - ``scatter``: the root to every other rank, to each something else.
    - ``broadcast``: the root to every other rank, to all the same.
    - ``grid``: each rank to its neighbours on a two-dimensional grid without borders; one that is
      its own neighbour sends nothing there.

    Each `repeat` times, with other data.
    """
    others = [rank for rank in range(ranks) if rank != ROOT]
    found = []
    for turn in range(repeat):
        if form == "send-recv":
            found += [Message(rank, (rank + 1) % ranks, turn) for rank in range(ranks)]
        elif form == "scatter":
            parts = enumerate(others, turn * len(others))
            found += [Message(ROOT, rank, part) for part, rank in parts]
        elif form == "broadcast":
            found += [Message(ROOT, rank, turn) for rank in others]
        else:
            found += [
                Message(rank, neighbour, 4 * turn + side)
                for rank in range(ranks)
                for side, neighbour in enumerate(_neighbours(rank, ranks))
                if neighbour != rank
            ]
    return found


def _neighbours(rank: int, ranks: int) -> tuple[int, int, int, int]:
    """Return the ranks to the left and right, above and below."""
    columns, rows = grid_of(ranks)
    row, column = divmod(rank, columns)
    return (
        row * columns + (column - 1) % columns,
        row * columns + (column + 1) % columns,
        (row - 1) % rows * columns + column,
        (row + 1) % rows * columns + column,
    )


class _Exchange:
    """One form: what this rank sends and receives, grouped or singly."""

    def __init__(
        self, ranks: Ranks, communicator: Any, stream: Any, form: str, options: _Options
    ) -> None:
        self._rank, self._communicator, self._stream = ranks.rank, communicator, stream
        self._count = options.size_bytes // ELEMENT_BYTES
        self._in_a_row = options.in_a_row
        self.form = form
        self.messages = messages_of(form, ranks.size, options.messages)
        self._mine = [each for each in self.messages if ranks.rank in (each.source, each.target)]
        self._received = [each for each in self._mine if each.target == ranks.rank]
        sent = self._count * (1 + max(each.part for each in self.messages))
        places = [self._count] * len(self._received)
        check_device_bytes(ranks.session, Buffers.bytes_for(sent, places))
        self._buffers = Buffers(ranks.session.cp, sent, places)
        self._turn = 0
        self._range = ranks.session.ranges.prepare(f"gs:nccl:{form}", options.size_bytes)

    def counts(self, ranks: int) -> tuple[int, int]:
        """Return how many messages a rank has at least and at most."""
        each = [
            sum(rank in (message.source, message.target) for message in self.messages)
            for rank in range(ranks)
        ]
        return min(each) * self._in_a_row, max(each) * self._in_a_row

    def renew(self) -> None:
        """Send other data from here on, and poison where it is received."""
        self._turn += 1
        places = range(len(self._received))
        self._buffers.renew(places, self._turn, self._rank, self._stream)

    def single(self) -> None:
        """Issue the messages one by one."""
        with self._range:
            for _ in range(self._in_a_row):
                self._issue()

    def grouped(self) -> None:
        """Issue all messages in one group."""
        with self._range:
            for _ in range(self._in_a_row):
                with group():
                    self._issue()

    def _issue(self) -> None:
        sent, place, stream = self._buffers.sent.data.ptr, 0, self._stream.ptr
        for message in self._mine:
            if message.source == self._rank:
                address = sent + message.part * self._count * ELEMENT_BYTES
                self._communicator.send(address, self._count, FLOAT32, message.target, stream)
            else:
                address = self._buffers.place(place).data.ptr
                self._communicator.recv(address, self._count, FLOAT32, message.source, stream)
                place += 1

    def check(self) -> None:
        """Compare all that was received last."""
        for number, message in enumerate(self._received):
            source = range(message.source, message.source + 1)
            parts = [Part(0, self._count, message.part * self._count, source)]
            place = self._buffers.place(number)
            self._buffers.data.check(place, parts, self._turn, f"{self.form} message")

    @property
    def last(self) -> Any:
        """Where the last message is received; None where this rank receives none."""
        return self._buffers.place(len(self._received) - 1) if self._received else None


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    with open_ranks(BENCHMARK.name, oversubscribe=arguments.oversubscribe) as ranks:
        return _measure(ranks, options, twin, arguments.reps)


def _measure(ranks: Ranks, options: _Options, twin: str | None, reps: int) -> Result:
    """Measure, and put the result together."""
    session = ranks.session
    communicator = ranks.nccl()
    stream = session.cp.cuda.Stream(non_blocking=True)
    forms = [_Exchange(ranks, communicator, stream, form, options) for form in FORMS]
    passes = []
    for each in forms:
        grouped = each.single if twin == _UNGROUPED else each.grouped
        for name, issue in (("single", each.single), ("grouped", grouped)):
            # NCCL connects the ranks when it first has to, and not behind a gate.
            each.renew()
            issue()
            stream.synchronize()
            passes.append(Pass(f"{each.form}-{name}", [stream], issue, prepare=each.renew))

    def check() -> None:
        for each in forms:
            each.check()

    corrupt = forms[0].last if twin == CORRUPT.name else None
    measured = session.measure(passes, reps, check=check, corrupt=corrupt)
    link = narrowest_link(ranks)
    figures: dict[str, float | None] = {}
    quantities, expected = [], []
    for each in forms:
        key = each.form.replace("-", "_")
        single_ns, grouped_ns = (
            measured.passes[f"{each.form}-{name}"].median_ns for name in ("single", "grouped")
        )
        figures[f"{key}_grouped_ratio"] = grouped_ns / single_ns
        rate = rate_bytes_per_s(_busiest_bytes(each.messages, options), grouped_ns)
        figures[f"{key}_rate_bytes_per_s"] = rate
        limit = link.limit_bytes_per_s
        quantities.append(
            Quantity(f"{each.form}, grouped", rate, "bytes/s", limit, f"one way, {link}")
        )
        least, most = each.counts(ranks.size)
        expected.append(ExpectedCount(f"{each.form}-single", "comm", least, most))
        if twin != _UNGROUPED:
            least = most = options.in_a_row
        expected.append(ExpectedCount(f"{each.form}-grouped", "comm", least, most))
    settings = nccl_settings()
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(options) | {"nccl_settings": settings},
        stages={},
        figures=figures,
        quantities=quantities,
        expected=expected,
        baselines={f"{form}-grouped": f"{form}-single" for form in FORMS},
        title=f"{options.messages} messages of {format_size(options.size_bytes)} to each partner, "
        f"{options.in_a_row} times in a row",
        lines=[
            f"{each.form}: a group takes {figures[f'{key}_grouped_ratio']:.2f}× the time of single "
            "messages"
            for each in forms
            for key in [each.form.replace("-", "_")]
        ],
        notes=nvls_note(settings),
    )


def _busiest_bytes(messages: Sequence[Message], options: _Options) -> int:
    """Return the bytes that the rank which sends or receives most does, one way."""
    sent = Counter(each.source for each in messages)
    received = Counter(each.target for each in messages)
    most = max(*sent.values(), *received.values())
    return most * options.size_bytes * options.in_a_row


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes a message (default: 1M)",
    )
    parser.add_argument(
        "--messages",
        type=positive_int,
        metavar="N",
        help="messages to each partner (default: 4)",
    )
    parser.add_argument(
        "--in-a-row",
        type=positive_int,
        metavar="N",
        help="how often a pass does all of it (default: 5)",
    )


BENCHMARK = Benchmark(
    name="nccl-group",
    summary="NCCL's sends and receives in one group, against each by itself",
    options="--size SIZE  --messages N  --in-a-row N",
    needs="2 GPUs, MPI, NCCL",
    twins=(
        Twin(
            _UNGROUPED,
            "the grouped passes issue their messages singly, too",
            "grouped: as many communication kernels as messages",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
    own_gpus=True,
)
