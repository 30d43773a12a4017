from types import SimpleNamespace

import pytest

from gpuscope.benchmarks._harness.machine import (
    Gpu,
    Readings,
    Sample,
    Sampler,
    cpus_of,
    cuda_version,
    free_host_bytes,
    link_limit_bytes_per_s,
)


def sample(clock_mhz: int = 1980, throttle: int = 0, generation: int = 5) -> Sample:
    return Sample(clock_mhz, throttle, 220.0, generation, 16)


def test_a_steady_clock_is_no_fault() -> None:
    assert Readings((sample(1980), sample(1965)), 0).faults() == []


def test_a_drifting_clock_voids_the_measurement() -> None:
    (fault,) = Readings((sample(1980), sample(1980), sample(1900)), 0).faults()
    assert "from 1980 to 1900 MHz" in fault


def test_a_drifting_clock_voids_no_times_that_did_not_drift() -> None:
    readings = Readings((sample(1980), sample(1700)), 0)
    assert readings.faults(steady=True) == []
    (note,) = readings.notes(steady=True)
    assert note.startswith("the SM clock drifted from 1980 to 1700 MHz, but the times did not")
    assert readings.notes() == []
    assert len(Readings((sample(1980), sample(1700)), 1).faults(steady=True)) == 1


def test_memory_errors_void_the_measurement() -> None:
    (fault,) = Readings((sample(),), 2).faults()
    assert fault.startswith("2 uncorrected memory errors")


def test_throttling_is_named_and_idling_is_not() -> None:
    readings = Readings((sample(throttle=0x1), sample(throttle=0x4), sample(throttle=0x40)), 0)
    assert readings.throttle_reasons() == ["power cap", "hardware thermal"]
    assert readings.notes() == ["the clock was held down by: power cap, hardware thermal"]


def test_the_link_counts_as_it_was_under_load() -> None:
    # An idle link reports a lower generation.
    summary = Readings((sample(generation=1), sample(generation=5)), None).summary()
    assert (summary["pcie_generation"], summary["pcie_width"]) == (5, 16)
    assert summary["pcie_limit_bytes_per_s"] == pytest.approx(63e9, rel=0.001)
    assert summary["ecc_errors"] is None


def test_no_readings_are_not_readings_of_zero() -> None:
    readings = Readings((), None)
    assert readings.summary() == {"samples": 0}
    assert readings.faults() == []
    assert "not sampled" in readings.notes()[0]


def test_unknown_generation_has_no_limit() -> None:
    assert link_limit_bytes_per_s(99, 16) is None


def test_processor_masks() -> None:
    assert cpus_of([0b101, 0b10]) == {0, 2, 65}
    assert cpus_of([]) == set()


def test_free_host_memory() -> None:
    assert free_host_bytes("MemTotal: 8 kB\nMemAvailable:    4 kB\n") == 4096


def test_cuda_version() -> None:
    assert cuda_version(13020) == "13.2"


def test_a_gpu_that_does_not_answer_leaves_everything_open() -> None:
    gpu = Gpu("0000:ff:1f.7")
    with Sampler(gpu) as sampler:
        pass
    assert sampler.readings() == Readings((), None)
    assert gpu.driver_version() is None
    assert gpu.bind_process()["bound"] is False


def test_nvlinks_that_are_up_are_counted() -> None:
    class NVMLError(Exception):
        pass

    def state(handle: object, link: int) -> int:
        if link >= 4:
            raise NVMLError
        return int(link != 2)

    gpu = Gpu("0000:ff:1f.7")
    assert gpu.nvlinks() is None
    gpu._nvml = SimpleNamespace(
        NVML_NVLINK_MAX_LINKS=18, NVMLError=NVMLError, nvmlDeviceGetNvLinkState=state
    )
    gpu.handle = None
    assert gpu.nvlinks() == 3
