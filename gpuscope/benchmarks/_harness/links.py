"""What connects two GPUs, as the driver's management library (NVML) knows it.

That two GPUs can reach each other's memory says nothing of the way there: peer access works over
PCIe, too. Only NVML tells how many NVLinks there are, directly or through switches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gpuscope.benchmarks._harness.machine import Gpu, link_limit_bytes_per_s
from gpuscope.units import format_rate

NVLINK_RATE_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9, 8: 100e9}
"""Rate of one NVLink, one way, by ``nvmlNvlinkVersion_t``: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0.

The figures NVIDIA states for its GPUs (18 links of an H200: 450 GB/s one way); the line rate that
``nvidia-smi nvlink -s`` shows is 6 % higher, for its coding.
"""
_HOPPER = 9
"""``NVML_DEVICE_ARCH_HOPPER``: some drivers call its links, which are 4.0, version 5.0."""
_HOPPER_VERSION = 6
_P2P_CAPS_NVLINK = 2
_P2P_STATUS_OK = 0
_P2P_STATUS_UNKNOWN = 6
_REMOTE_IS_GPU = 0
_MAX_LINKS = 36


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two GPUs. What NVML did not say is None.

    ``count`` are NVLinks, or lanes of PCIe; ``limit_bytes_per_s`` is what they carry one way.
    """

    kind: Literal["NVLink", "PCIe", "same GPU"] | None
    count: int | None = None
    limit_bytes_per_s: float | None = None

    def __str__(self) -> str:
        """Write the link for people: ``NVLink × 18 (450 GB/s)``."""
        if self.kind is None:
            return "link not recorded"
        count = "" if self.count is None else f" × {self.count}"
        limit = self.limit_bytes_per_s
        return f"{self.kind}{count}" + (f" ({format_rate(limit)})" if limit else "")


@dataclass(frozen=True, slots=True)
class _End:
    """One NVLink that is up, seen from a GPU: what it leads to, and its version by NVML's number.

    ``remote`` is the PCI bus id of a GPU, None where it leads to a switch or where NVML is silent.
    """

    remote: str | None
    version: int | None


def link_between(pci_bus_id_a: str, pci_bus_id_b: str) -> Link:
    """Return what connects two GPUs, each named by its PCI bus id.

    Links that lead to switches count if both GPUs have them: as many as the GPU with fewer has.
    """
    if _same_id(pci_bus_id_a, pci_bus_id_b):
        return Link("same GPU")
    first, second = Gpu(pci_bus_id_a), Gpu(pci_bus_id_b)
    status = first.ask("nvmlDeviceGetP2PStatus", second.handle, _P2P_CAPS_NVLINK)
    if status is None or status == _P2P_STATUS_UNKNOWN:
        return Link(None)
    return _nvlink(first, second) if status == _P2P_STATUS_OK else _pcie(first, second)


def describe_links(pci_bus_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the link of every two GPUs, named by their places in the list, as plain values."""
    return [
        {"a": a, "b": b, **asdict(link_between(pci_bus_ids[a], pci_bus_ids[b]))}
        for a, b in itertools.combinations(range(len(pci_bus_ids)), 2)
    ]


def _nvlink(first: Gpu, second: Gpu) -> Link:
    """Return the NVLinks between two GPUs that are known to reach each other over them."""
    used = [end for end in _ends(first) if end.remote and _same_id(end.remote, second.pci_bus_id)]
    if not used:
        switched = [[end for end in _ends(gpu) if end.remote is None] for gpu in (first, second)]
        used = min(switched, key=len)
    if not used:
        return Link("NVLink")
    rates = [_rate(first, end.version) for end in used]
    known = [rate for rate in rates if rate is not None]
    return Link("NVLink", len(used), sum(known) if len(known) == len(rates) else None)


def _ends(gpu: Gpu) -> list[_End]:
    """Return the NVLinks of a GPU that are up."""
    ends = []
    for link in range(_MAX_LINKS):
        if gpu.ask("nvmlDeviceGetNvLinkState", link):
            remote = None
            if gpu.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _REMOTE_IS_GPU:
                info = gpu.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
                remote = None if info is None else _text(info.busId)
            ends.append(_End(remote, gpu.ask("nvmlDeviceGetNvLinkVersion", link)))
    return ends


def _rate(gpu: Gpu, version: int | None) -> float | None:
    """Return what one NVLink of a GPU carries one way; None for a version not known here."""
    if version is not None and gpu.ask("nvmlDeviceGetArchitecture") == _HOPPER:
        version = _HOPPER_VERSION
    return None if version is None else NVLINK_RATE_BYTES_PER_S.get(version)


def _pcie(first: Gpu, second: Gpu) -> Link:
    """Return the narrower of two GPUs' own PCIe links, at its best: an idle one reports less."""
    widths, limits = [], []
    for gpu in (first, second):
        generation = gpu.ask("nvmlDeviceGetMaxPcieLinkGeneration")
        width = gpu.ask("nvmlDeviceGetMaxPcieLinkWidth")
        if generation is None or width is None:
            return Link("PCIe")
        widths.append(width)
        limits.append(link_limit_bytes_per_s(generation, width))
    known = [limit for limit in limits if limit is not None]
    return Link("PCIe", min(widths), min(known) if len(known) == len(limits) else None)


def _same_id(one: str, other: str) -> bool:
    """Compare PCI bus ids, whose domain has four digits in CUDA and eight in NVML."""
    return one.lower()[-12:] == other.lower()[-12:]


def _text(bus_id: bytes | str) -> str:
    """Return NVML's text, which some of its bindings leave as bytes."""
    return bus_id.decode() if isinstance(bus_id, bytes) else bus_id
