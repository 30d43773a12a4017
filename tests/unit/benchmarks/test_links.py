"""What connects two GPUs, against an NVML of two GPUs made up for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.benchmarks._harness.links import Link, describe_links, link_between

A, B, C = "0000:18:00.0", "0000:2A:00.0", "0000:3a:00.0"
GPU, SWITCH, UNKNOWN = 0, 2, 0xFF


End = tuple[int, str | None, int]
"""Kind of what a link leads to, its bus id, the link's version."""


class NVMLError(Exception):
    pass


class Nvml:
    """As much of NVML as links are read with. ``ends`` has (type, bus id, version) for each link
    of a GPU that is up; what is not there raises, as NVML does."""

    NVMLError = NVMLError

    def __init__(self, ends: Mapping[str, Sequence[End]], **values: Any) -> None:
        self.ends = ends
        self.values = values

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> str:
        return bus_id

    def _end(self, handle: str, link: int) -> End:
        try:
            return self.ends[handle][link]
        except (KeyError, IndexError):
            raise NVMLError from None

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        self._end(handle, link)
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:
        return self._end(handle, link)[0]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> Any:
        remote = self._end(handle, link)[1]
        if remote is None:
            raise NVMLError
        return SimpleNamespace(busId=f"0000{remote}".encode())

    def nvmlDeviceGetNvLinkVersion(self, handle: str, link: int) -> int:
        return self._end(handle, link)[2]

    def _value(self, name: str) -> Any:
        if name not in self.values:
            raise NVMLError
        return self.values[name]

    def nvmlDeviceGetP2PStatus(self, handle: str, other: str, index: int) -> int:
        assert (handle, other, index) == (A, B, 2)
        return int(self._value("status"))

    def nvmlDeviceGetArchitecture(self, handle: str) -> int:
        return int(self._value("architecture"))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: str) -> int:
        return int(self._value("generation")[handle])

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:
        return int(self._value("width")[handle])


def found(monkeypatch: pytest.MonkeyPatch, nvml: Any) -> Link:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return link_between(A, B)


def test_links_through_switches_count_if_both_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {A: [(SWITCH, None, 6)] * 18, B: [(SWITCH, None, 6)] * 16}
    link = found(monkeypatch, Nvml(ends, status=0, architecture=9))
    assert link == Link("NVLink", 16, 400e9)
    assert str(link) == "NVLink × 16 (400 GB/s)"


def test_direct_links_count_where_they_lead_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {A: [(GPU, C, 2), (GPU, B.lower(), 2), (GPU, B, 2)], B: [(GPU, A, 2)]}
    assert found(monkeypatch, Nvml(ends, status=0, architecture=7)) == Link("NVLink", 2, 50e9)


def test_hopper_has_links_of_version_4_whatever_its_driver_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = {gpu: [(UNKNOWN, None, 7)] * 18 for gpu in (A, B)}
    assert found(monkeypatch, Nvml(ends, status=0, architecture=9)).limit_bytes_per_s == 450e9
    assert found(monkeypatch, Nvml(ends, status=0, architecture=10)).limit_bytes_per_s == 900e9


def test_an_unknown_version_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {gpu: [(SWITCH, None, 6), (SWITCH, None, 99)] for gpu in (A, B)}
    assert found(monkeypatch, Nvml(ends, status=0)) == Link("NVLink", 2, None)


def test_nvlink_whose_links_are_not_told_has_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, Nvml({}, status=0)) == Link("NVLink", None, None)


def test_pcie_is_as_good_as_the_narrower_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml({}, status=5, generation={A: 5, B: 4}, width={A: 8, B: 16})
    link = found(monkeypatch, nvml)
    assert (link.kind, link.count) == ("PCIe", 8)
    assert link.limit_bytes_per_s == pytest.approx(8 * 3.938e9)
    assert found(monkeypatch, Nvml({}, status=5)) == Link("PCIe", None, None)


@pytest.mark.parametrize("values", [{}, {"status": 6}])
def test_what_nvml_does_not_say_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, int]
) -> None:
    link = found(monkeypatch, Nvml({}, **values))
    assert link == Link(None, None, None)
    assert str(link) == "link not recorded"


def test_without_nvml_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, None) == Link(None)


def test_the_links_of_several_gpus_are_those_of_every_two(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {gpu: [(SWITCH, None, 6)] * 18 for gpu in (A, B)}
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(ends, status=0, architecture=9))
    assert describe_links([A, B]) == [
        {"a": 0, "b": 1, "kind": "NVLink", "count": 18, "limit_bytes_per_s": 450e9}
    ]
    places = [(row["a"], row["b"]) for row in describe_links([A, A, A])]
    assert places == [(0, 1), (0, 2), (1, 2)]


def test_a_gpu_and_itself() -> None:
    assert link_between(A, f"0000{A}") == Link("same GPU", None, None)
