"""Two GPUs of one process: which they are, whether they reach each other, and the ways between."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.benchmarks._harness import pairs
from gpuscope.benchmarks._harness.links import Link
from gpuscope.benchmarks._harness.pairs import (
    DirectWay,
    Pair,
    PushedWay,
    StagedWay,
    choose_devices,
    enable_peer_access,
    pair_argument,
)
from gpuscope.errors import MissingError, UsageError


def test_two_gpus_by_number() -> None:
    assert pair_argument("0-3") == "0-3"
    for wrong in ("0", "0-1-2", "a-b", "0--1", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="write them like 0-1"):
            pair_argument(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="--same-device"):
        pair_argument("1-1")


def test_the_pair_must_be_there() -> None:
    assert choose_devices("p2p-latency", None, 2, same_device=False) == (0, 1)
    assert choose_devices("p2p-latency", "3-1", 4, same_device=False) == (3, 1)
    assert choose_devices("p2p-latency", "1-0", 2, same_device=True) == (1, 1)
    with pytest.raises(MissingError) as caught:
        choose_devices("p2p-latency", None, 1, same_device=False)
    assert str(caught.value) == (
        "p2p-latency needs 2 GPUs, found 1 (`--same-device` measures a local copy)."
    )
    with pytest.raises(MissingError, match=r"needs 4 GPUs, found 2"):
        choose_devices("p2p-latency", "0-3", 2, same_device=False)
    with pytest.raises(MissingError, match=r"needs 1 GPU, found 0\.$"):
        choose_devices("p2p-latency", None, 0, same_device=True)


class Runtime:
    """GPUs of which only some reach each other."""

    def __init__(self, reachable: set[tuple[int, int]]) -> None:
        self.reachable = reachable
        self.enabled: list[tuple[int, int]] = []
        self.current = 0
        runtime = SimpleNamespace(
            deviceCanAccessPeer=lambda *way: int(way in self.reachable),
            deviceEnablePeerAccess=lambda owner: self.enabled.append((self.current, owner)),
            deviceGetPCIBusId=lambda device: f"0000:0{device}:00.0",
        )
        self.cp = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=self.device))

    def device(self, number: int) -> Any:
        self.current = number
        return nullcontext()


def test_peer_access_is_asked_for_before_it_is_taken() -> None:
    found = Runtime({(0, 1)})
    enable_peer_access(found.cp, 0, 1)
    assert found.enabled == [(0, 1)]
    with pytest.raises(UsageError) as caught:
        enable_peer_access(found.cp, 1, 0)
    assert str(caught.value) == "peer access GPU1→GPU0 unsupported: use `--path staged`."


@pytest.mark.parametrize(
    ("path", "devices", "enabled"),
    [
        ("p2p", (0, 1), [(0, 1), (1, 0)]),
        ("sm", (2, 1), [(2, 1), (1, 2)]),
        ("driver", (0, 1), []),
        ("staged", (0, 1), []),
        ("p2p", (1, 1), []),
    ],
)
def test_peer_access_is_taken_both_ways_where_the_path_needs_it(
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    devices: tuple[int, int],
    enabled: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(pairs, "link_between", lambda *ids: Link("NVLink", 18, 450e9))
    found = Runtime({(a, b) for a in range(3) for b in range(3)})
    watched: list[int] = []
    session: Any = SimpleNamespace(cp=found.cp, watch=watched.append)
    pair = Pair(session, devices, path)
    assert found.enabled == enabled
    assert watched == ([] if pair.same else [devices[1]])
    assert pair.copy_class == ("d2d" if devices[0] == devices[1] else "p2p")


def test_a_direct_way_names_both_devices() -> None:
    copies: list[Any] = []
    runtime = SimpleNamespace(memcpyPeerAsync=lambda *arguments: copies.append(arguments))
    pair: Any = SimpleNamespace(
        cp=SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)), devices=(2, 5)
    )
    DirectWay(pair, 0, SimpleNamespace(ptr="s")).copy(20, 10, 8)
    DirectWay(pair, 1, SimpleNamespace(ptr="s")).copy(10, 20, 8)
    assert copies == [(20, 5, 10, 2, 8, "s"), (10, 2, 20, 5, 8, "s")]


def test_pushed_copies_take_turns(cupy: Any) -> None:
    cupy.cuda.runtime.memcpyPeerAsync = lambda to, to_gpu, of, of_gpu, size, stream: (
        cupy.log.append(f"{stream} {of_gpu}>{to_gpu}")
    )
    pair: Any = SimpleNamespace(
        cp=cupy, devices=(0, 1), stream=lambda side: cupy.cuda.Stream(non_blocking=True)
    )
    there, back = PushedWay(pair, 0), PushedWay(pair, 1)
    there.back, back.back = back, there
    for way in (there, back, there):
        way.copy(20, 10, 8)
    push, answer = (
        ["s1 waits for e2", "s1 0>1", "e1 in s1"],
        ["s2 waits for e1", "s2 1>0", "e2 in s2"],
    )
    assert cupy.log == [*push, *answer, *push]
    assert len(push) == pairs.PUSHED_COMMANDS


@pytest.fixture
def staged(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a staged way with so many slots, and its log."""
    monkeypatch.setattr(
        cupy.cuda, "alloc_pinned_memory", lambda size: SimpleNamespace(ptr=f"host{size}")
    )
    monkeypatch.setattr(
        cupy.cuda.runtime,
        "memcpyAsync",
        lambda target, source, size, kind, stream: cupy.log.append(
            f"{stream} {kind} {source}→{target}"
        ),
    )

    def make(slots: int) -> StagedWay:
        streams = tuple(cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        pair: Any = SimpleNamespace(cp=cupy)
        made = StagedWay(pair, streams, 4, slots)
        cupy.log.clear()
        return made

    return make


def test_a_staged_copy_comes_in_after_it_went_out(cupy: Any, staged: Any) -> None:
    way = staged(1)
    way.copy("b", "a", 4)
    way.copy("b", "a", 4)
    once = ["s1 d2h a→host4", "e1 in s1", "s2 waits for e1", "s2 h2d host4→b"]
    assert cupy.log == once * 2
    assert len(once) == pairs.STAGED_COMMANDS


def test_a_host_buffer_is_filled_again_only_when_it_was_emptied(cupy: Any, staged: Any) -> None:
    way = staged(2)
    for _ in range(3):
        way.copy("b", "a", 4)
    assert [line for line in cupy.log if "waits" in line] == [
        "s2 waits for e1",
        "s2 waits for e2",
        "s1 waits for e3",  # recorded behind the first h2d
        "s2 waits for e1",
    ]
    assert cupy.log[4] == "e3 in s2"
