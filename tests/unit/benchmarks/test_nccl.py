"""`nccl` and `nccl-group`: factors, what must arrive, orders that cannot deadlock, options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gpuscope.benchmarks import nccl, nccl_group
from gpuscope.benchmarks._harness import collectives
from gpuscope.benchmarks._harness import nccl as harness
from gpuscope.benchmarks._harness.collectives import COLLECTIVES, Buffers, Call, elements_of
from gpuscope.benchmarks._harness.links import Link
from gpuscope.benchmarks._harness.nccl import nccl_settings, nvls_note
from gpuscope.benchmarks._harness.ranks import Ranks
from gpuscope.errors import MissingError, ProgramError, UsageError

FACTORS = {
    "all-reduce": (1.0, 1.5),
    "broadcast": (1.0, 1.0),
    "reduce": (1.0, 1.0),
    "reduce-scatter": (0.5, 0.75),
    "all-gather": (0.5, 0.75),
    "send-recv": (1.0, 1.0),
}


@pytest.mark.parametrize("case", COLLECTIVES, ids=lambda case: case.name)
def test_the_bus_factors_are_those_of_nccl_s_own_tests(case: collectives.Collective) -> None:
    assert (case.bus_factor(2), case.bus_factor(4)) == FACTORS[case.name]


class FakeNccl:
    """One rank's calls, carried out at once on the data that all ranks send."""

    def __init__(self, sent: list[np.ndarray[Any, Any]], rank: int, received: Any) -> None:
        self.sent, self.rank, self.received = sent, rank, received

    def _put(self, values: Any) -> None:
        self.received[: len(values)] = values

    def allReduce(self, sent: int, received: int, count: int, kind: int, op: int, at: int) -> None:
        self._put(sum(each[:count] for each in self.sent))

    def broadcast(self, sent: int, got: int, count: int, kind: int, root: int, at: int) -> None:
        self._put(self.sent[root][:count])

    def reduce(
        self, sent: int, got: int, count: int, kind: int, op: int, root: int, at: int
    ) -> None:
        if self.rank == root:
            self._put(sum(each[:count] for each in self.sent))

    def reduceScatter(self, sent: int, got: int, count: int, kind: int, op: int, at: int) -> None:
        begin = self.rank * count
        self._put(sum(each[begin : begin + count] for each in self.sent))

    def allGather(self, sent: int, received: int, count: int, kind: int, at: int) -> None:
        self._put(np.concatenate([each[:count] for each in self.sent]))

    def send(self, sent: int, count: int, kind: int, peer: int, at: int) -> None:
        assert peer == (self.rank + 1) % len(self.sent)

    def recv(self, received: int, count: int, kind: int, peer: int, at: int) -> None:
        self._put(self.sent[peer][:count])


@contextmanager
def no_group() -> Iterator[None]:
    yield


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("case", COLLECTIVES, ids=lambda case: case.name)
def test_the_parts_that_are_checked_are_what_the_operation_leaves(
    case: collectives.Collective, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank sends other numbers; where nothing must arrive, nothing is checked."""
    monkeypatch.setattr(collectives, "group", no_group)
    elements = elements_of(100, ranks)
    sent = [1000.0 * 7**rank + np.arange(elements) for rank in range(ranks)]
    for rank in range(ranks):
        received = np.full(elements, np.nan)
        case.issue(Call(FakeNccl(sent, rank, received), 0, 0, elements, rank, ranks, 0))
        checked = np.full(elements, np.nan)
        for part in case.parts(elements, rank, ranks):
            stretch = slice(part.first, part.first + part.count)
            summed = sum(sent[source][stretch] for source in part.ranks)
            checked[part.begin : part.begin + part.count] = summed
        np.testing.assert_array_equal(received, checked)


def test_a_whole_is_rounded_up_to_as_much_for_each_rank() -> None:
    assert [elements_of(8, ranks) for ranks in (1, 2, 3, 4)] == [2, 2, 3, 4]
    assert elements_of(128 << 20, 8) == 32 << 20


def test_places_start_where_nccl_copies_fast(cupy: Any) -> None:
    buffers = Buffers(FakeArrays(), 10, [2, 64, 65])
    assert [buffers.place(number).tolist()[0] for number in range(3)] == [0, 64, 128]
    assert [len(buffers.place(number)) for number in range(3)] == [2, 64, 65]
    assert Buffers.bytes_for(10, [2, 64, 65]) == 4 * (10 + 131 + 3 * 64)


class FakeArrays:
    """Arrays that hold their own positions."""

    def RawKernel(self, source: str, name: str) -> None:
        assert name in source

    def empty(self, elements: int, dtype: Any) -> Any:
        return np.arange(elements)

    def full(self, elements: int, value: float, dtype: Any) -> Any:
        return np.arange(elements)


# Messages of `nccl-group`


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("form", nccl_group.FORMS)
def test_single_messages_never_wait_for_each_other_in_a_circle(form: str, ranks: int) -> None:
    """Each rank is held by its first message until the other side has reached it, too."""
    messages = nccl_group.messages_of(form, ranks, 2)
    waiting = {
        rank: [each for each in messages if rank in (each.source, each.target)]
        for rank in range(ranks)
    }
    while any(waiting.values()):
        heads = [queue[0] for queue in waiting.values() if queue]
        ready = [head for head in heads if heads.count(head) == 2]
        assert ready, "all ranks wait"
        for rank in (ready[0].source, ready[0].target):
            waiting[rank].pop(0)


def test_the_forms_of_messages() -> None:
    def pairs(form: str, ranks: int) -> list[tuple[int, int, int]]:
        messages = nccl_group.messages_of(form, ranks, 1)
        return [(each.source, each.target, each.part) for each in messages]

    assert pairs("send-recv", 3) == [(0, 1, 0), (1, 2, 0), (2, 0, 0)]
    assert pairs("scatter", 3) == [(0, 1, 0), (0, 2, 1)]
    assert pairs("broadcast", 3) == [(0, 1, 0), (0, 2, 0)]
    # Two ranks in a row are each other's neighbours on both sides.
    assert pairs("grid", 2) == [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]
    assert len(pairs("grid", 4)) == 16


def test_every_repetition_has_data_of_its_own() -> None:
    for form in nccl_group.FORMS:
        first = nccl_group.messages_of(form, 4, 1)
        both = nccl_group.messages_of(form, 4, 2)
        again = {each.part for each in both[len(first) :]}
        assert again.isdisjoint({each.part for each in first})


@pytest.mark.parametrize(("ranks", "grid"), [(1, (1, 1)), (2, (2, 1)), (6, (3, 2)), (7, (7, 1))])
def test_the_grid_is_nearly_square(ranks: int, grid: tuple[int, int]) -> None:
    assert nccl_group.grid_of(ranks) == grid


# Options


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    nccl.BENCHMARK.add_arguments(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), plan=None)


def test_the_table_has_all_operations_at_sizes_from_8_bytes_to_128_mib() -> None:
    options = nccl._resolve(parsed(), None)
    assert options.sizes_bytes == (8, 128, 2048, 32768, 524288, 8388608, 134217728)
    assert [nccl.size_label(size) for size in options.sizes_bytes[1:4]] == ["128B", "2K", "32K"]
    assert len(options.operations) == 6
    assert (options.in_a_row, options.communicators, options.channels) == (20, 1, ())


def test_beside_compute_one_operation_with_several_numbers_of_channels() -> None:
    for words, twin in ((["--with-compute"], None), ([], "same-stream")):
        options = nccl._resolve(parsed(*words), twin)
        assert options.with_compute
        assert options.operations == ("all-reduce",)
        assert options.channels == (1, 2, 4, 8, 16)
        assert options.in_a_row == 4
    chosen = nccl._resolve(parsed("--with-compute", "--channels", "4,2,4"), None)
    assert chosen.channels == (2, 4)


@pytest.mark.parametrize(
    "words",
    [[], ["--with-compute", "--channels", "2"], ["--communicators", "2", "--sizes", "8,1K"]],
)
def test_the_traced_run_does_what_the_untraced_one_did(words: list[str], tmp_path: Path) -> None:
    """It is given the options that the first one resolved, as a plan."""
    first = nccl._resolve(parsed(*words), None)
    plan = tmp_path / "untraced.json"
    plan.write_text(json.dumps({"benchmark": "nccl", "options": asdict(first)}))
    again = parsed(*words)
    again.plan = str(plan)
    assert nccl._resolve(again, None) == first


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--channels", "2"], "goes with --with-compute"),
        (["--with-compute", "--communicators", "2"], "leave --communicators out"),
        (["--communicators", "2", "--operations", "broadcast,reduce"], "one of --operations"),
    ],
)
def test_options_that_exclude_each_other(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        nccl._resolve(parsed(*words), None)


@pytest.mark.parametrize("words", [["--operations", "gather"], ["--channels", "65"]])
def test_values_that_there_are_not(words: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError):
        parsed(*words)


def test_without_nvlink_sharp_the_rates_are_not_those_that_are_published() -> None:
    settings = nccl_settings({"NCCL_NVLS_ENABLE": "0", "HOME": "/root"})
    assert settings == {"NCCL_NVLS_ENABLE": "0"}
    (note,) = nvls_note(settings)
    assert "not comparable" in note
    assert nvls_note({}) == []


# Communicators of few channels


class FakeLibrary:
    """As much of NCCL as is called through ctypes; `failing` is a function that does not work."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nccl"):
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            if name == "ncclCommInitRankConfig":
                arguments = (*arguments[1:-1], arguments[-1]._obj)
            self.calls.append((name, *arguments))
            return 5 if name == self.failing else 0

        function.__dict__["argtypes"] = ()
        if name == "ncclGetErrorString":
            return lambda code: f"error {code}".encode()
        return function


class OneRank:
    rank, size = 0, 2

    def agree(self, value: Any) -> Any:
        return value


def test_a_communicator_of_few_channels_is_started_with_its_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(harness, "_library", lambda: library)
    communicator: Any = harness.LimitedCommunicator(cast(Ranks, OneRank()), 4)
    name, size, _, rank, config = library.calls[-1]
    assert (name, size, rank) == ("ncclCommInitRankConfig", 2, 0)
    assert (config.size, config.magic, config.version) == (48, 0xCAFEBEEF, 21700)
    assert (config.min_ctas, config.max_ctas) == (4, 4)
    assert config.blocking == config.split_share == -(1 << 31)
    communicator.allReduce(11, 12, 13, 7, 0, 99)
    communicator.send(11, 13, 7, 1, 99)
    handle = communicator._handle
    assert library.calls[-2:] == [
        ("ncclAllReduce", 11, 12, 13, 7, 0, handle, 99),
        ("ncclSend", 11, 13, 7, 1, handle, 99),
    ]
    # All that the collectives call is there.
    for case in COLLECTIVES[:5]:
        case.issue(Call(communicator, 11, 12, 14, 0, 2, 99))


def test_nccl_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_library", lambda: FakeLibrary("ncclCommInitRankConfig"))
    with pytest.raises(ProgramError, match=r"NCCL failed: error 5\."):
        harness.LimitedCommunicator(cast(Ranks, OneRank()), 4)


def test_without_nccl_channels_cannot_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_LIBRARY", "libnccl-that-is-nowhere.so")
    with pytest.raises(MissingError, match=r"NCCL 2\.17 or newer is needed to choose channels"):
        harness._library()


# The narrowest link


class Buses(OneRank):
    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.mpi = SimpleNamespace(Get_processor_name=lambda: "mine")
        self.session = SimpleNamespace(pci_bus_id="mine")
        self.answers = [hosts, ["a", "b", "c"]]

    def gather(self, value: str) -> list[str]:
        assert value == "mine"
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("hosts", "limits", "found"),
    [
        (["h", "h", "h"], {"ab": 450e9, "bc": 50e9, "ca": 450e9}, 50e9),
        (["h", "h", "h"], {"ab": 450e9, "bc": None, "ca": 450e9}, None),
        (["h", "i", "h"], {}, None),
    ],
)
def test_the_narrowest_link_of_a_ring_limits_it(
    hosts: list[str],
    limits: dict[str, float | None],
    found: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        harness, "link_between", lambda one, other: Link("NVLink", 18, limits[one + other])
    )
    link = harness.narrowest_link(cast(Ranks, Buses(hosts)))
    assert link.limit_bytes_per_s == found
