"""The machine under the measurement: where the process runs, and what the GPU did meanwhile."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.benchmarks._harness.stats import MAX_CLOCK_DRIFT, relative_spread

SAMPLE_PERIOD_S = 0.05
PCIE_LANE_RATE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Rate of one PCIe lane, one way, by generation, after line coding."""
THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""The reasons that hold the clock down, by NVML's bit; idle and set clocks are none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the GPU."""

    sm_clock_mhz: int
    throttle_bits: int
    power_w: float
    pcie_generation: int
    pcie_width: int


@dataclass(frozen=True, slots=True)
class Readings:
    """What was sampled during one measurement, with the memory errors it added."""

    samples: tuple[Sample, ...]
    ecc_errors: int | None

    def drift(self) -> str | None:
        """Say by how much the clock drifted, if it did so by more than is allowed."""
        clocks = [sample.sm_clock_mhz for sample in self.samples]
        if not clocks or relative_spread(clocks) <= MAX_CLOCK_DRIFT:
            return None
        return f"the SM clock drifted from {max(clocks)} to {min(clocks)} MHz"

    def faults(self, *, steady: bool = False) -> list[str]:
        """Return the reasons for which the measurement must not be used.

        A clock that drifted is none where the times were `steady` all the same.
        """
        reasons = []
        drift = self.drift()
        if drift and not steady:
            reasons.append(
                f"{drift}, over {MAX_CLOCK_DRIFT:.0%}: let the GPU cool, or lock its clocks"
            )
        if self.ecc_errors:
            reasons.append(f"{self.ecc_errors} uncorrected memory errors meanwhile")
        return reasons

    def notes(self, *, steady: bool = False) -> list[str]:
        """Return what a reader of the figures should know, without voiding them."""
        if not self.samples:
            return ["clocks, power and the link were not sampled: NVML gave no readings"]
        found = []
        drift = self.drift()
        if drift and steady:
            found.append(f"{drift}, but the times did not drift: the memory bounds them")
        held = self.throttle_reasons()
        if held:
            found.append(f"the clock was held down by: {', '.join(held)}")
        return found

    def throttle_reasons(self) -> list[str]:
        """Return the names of all reasons seen."""
        bits = 0
        for sample in self.samples:
            bits |= sample.throttle_bits
        return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]

    def summary(self) -> dict[str, Any]:
        """Return the readings as plain values for the result."""
        if not self.samples:
            return {"samples": 0}
        clocks = [sample.sm_clock_mhz for sample in self.samples]
        powers = [sample.power_w for sample in self.samples]
        generation = max(sample.pcie_generation for sample in self.samples)
        width = max(sample.pcie_width for sample in self.samples)
        return {
            "samples": len(self.samples),
            "sm_clock_mhz": {
                "min": min(clocks),
                "median": statistics.median(clocks),
                "max": max(clocks),
            },
            "power_w": {"median": statistics.median(powers), "max": max(powers)},
            "throttle_reasons": self.throttle_reasons(),
            "ecc_errors": self.ecc_errors,
            "pcie_generation": generation,
            "pcie_width": width,
            "pcie_limit_bytes_per_s": link_limit_bytes_per_s(generation, width),
        }


def link_limit_bytes_per_s(generation: int, width: int) -> float | None:
    """Return what a PCIe link can carry one way; None for a generation not known here."""
    lane = PCIE_LANE_RATE_BYTES_PER_S.get(generation)
    return lane * width if lane else None


def cpus_of(words: Sequence[int]) -> set[int]:
    """Return the processors that a mask of 64-bit words names, the lowest word first."""
    return {
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    }


class Gpu:
    """One GPU as the driver's management library (NVML) sees it. Creates no CUDA context.

    Without the library, or where the driver does not answer it, everything is "not recorded".
    """

    def __init__(self, pci_bus_id: str) -> None:
        self.pci_bus_id = pci_bus_id
        self.handle: Any = None
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            self._nvml = pynvml
        except ImportError:
            pass
        except pynvml.NVMLError:
            pass

    def ask(self, function: str, *args: Any) -> Any:
        """Call an NVML function on this GPU; None where it is not supported."""
        if self._nvml is None:
            return None
        try:
            return getattr(self._nvml, function)(self.handle, *args)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def bind_process(self) -> dict[str, Any]:
        """Keep this process on the processors next to the GPU, and return where that is.

        Call it before a context or a pinned buffer is made, so that both are local. Processors
        that the process may not use stay out; where none is left, or the GPU does not say,
        nothing changes.
        """
        sysfs = Path(f"/sys/bus/pci/devices/{self.pci_bus_id.lower()[-12:]}/numa_node")
        node = int(sysfs.read_text()) if sysfs.exists() else -1
        allowed = os.sched_getaffinity(0)
        words = self.ask("nvmlDeviceGetCpuAffinity", (max(allowed) + 64) // 64) or ()
        near = allowed & cpus_of(words)
        if near:
            os.sched_setaffinity(0, near)
        return {
            "node": node if node >= 0 else None,
            "cpus": len(near or allowed),
            "bound": bool(near) and near != allowed,
        }

    def driver_version(self) -> str | None:
        """Return the version of the display driver."""
        return None if self._nvml is None else str(self._nvml.nvmlSystemGetDriverVersion())

    def ecc_errors(self) -> int | None:
        """Return the count of uncorrected memory errors since the driver was loaded."""
        if self._nvml is None:
            return None
        count = self.ask(
            "nvmlDeviceGetTotalEccErrors",
            self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            self._nvml.NVML_VOLATILE_ECC,
        )
        return None if count is None else int(count)

    def nvlinks(self) -> int | None:
        """Return the number of NVLink connections that are up; None where NVML does not say."""
        if self._nvml is None:
            return None
        states = [
            self.ask("nvmlDeviceGetNvLinkState", link)
            for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)
        ]
        known = [state for state in states if state is not None]
        return sum(known) if known else None

    def sample(self) -> Sample | None:
        """Read clock, throttling, power and link once; None where the GPU does not say."""
        if self._nvml is None:
            return None
        clock = self.ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        if clock is None:
            return None
        return Sample(
            sm_clock_mhz=clock,
            throttle_bits=self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0,
            power_w=(self.ask("nvmlDeviceGetPowerUsage") or 0) / 1000,
            pcie_generation=self.ask("nvmlDeviceGetCurrPcieLinkGeneration") or 0,
            pcie_width=self.ask("nvmlDeviceGetCurrPcieLinkWidth") or 0,
        )


class Sampler:
    """Reads a :class:`Gpu` from a thread of its own while the ``with`` block runs."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._samples: list[Sample] = []
        self._ecc_before: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-sampler", daemon=True)

    def _run(self) -> None:
        while True:
            sample = self._gpu.sample()
            if sample is not None:
                self._samples.append(sample)
            if self._stop.wait(SAMPLE_PERIOD_S):
                return

    def __enter__(self) -> Sampler:
        self._ecc_before = self._gpu.ecc_errors()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def readings(self) -> Readings:
        """Return what was read; call it after the block."""
        after = self._gpu.ecc_errors()
        errors = None if after is None or self._ecc_before is None else after - self._ecc_before
        return Readings(tuple(self._samples), errors)


def free_host_bytes(meminfo: str | None = None) -> int:
    """Return the host memory that programs can still take, from the text of /proc/meminfo."""
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def cuda_version(number: int) -> str:
    """Write CUDA's version number as people do: ``cuda_version(12080) == '12.8'``."""
    return f"{number // 1000}.{number % 1000 // 10}"


def describe(
    cp: Any, device: int, gpu: Gpu, numa: Mapping[str, Any], readings: Readings
) -> dict[str, Any]:
    """Return what the benchmark ran on, as plain values."""
    import platform
    from importlib import metadata

    runtime = cp.cuda.runtime
    properties = runtime.getDeviceProperties(device)
    return {
        "gpu": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory_bytes": properties["totalGlobalMem"],
        "copy_engines": properties["asyncEngineCount"],
        "l2_cache_bytes": properties["l2CacheSize"],
        "nvlinks": gpu.nvlinks(),
        "driver": gpu.driver_version(),
        "cuda": cuda_version(runtime.runtimeGetVersion()),
        "cuda_of_driver": cuda_version(runtime.driverGetVersion()),
        "cupy": cp.__version__,
        "nvtx": metadata.version("nvtx"),
        "python": platform.python_version(),
        "numa": dict(numa),
        **readings.summary(),
    }
