"""The machine is described from NVML, or nvidia-smi, or not at all; never anything private."""

from __future__ import annotations

import getpass
import json
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.recording import checks, machine, nsys

SMI = """#!/bin/sh
case "$*" in
  *--query-gpu*)
    echo "0, NVIDIA H200, 580.159, 143771, 00000000:18:00.0, 5, 1, 16, 16"
    echo "1, NVIDIA H200, 580.159, 143771, 00000000:2A:00.0, 5, [N/A], 16, 16" ;;
  *nvlink*)
    printf 'GPU %s\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: 26.562 GB/s\\n' "$4" ;;
  *) echo "| NVIDIA-SMI 580.159   Driver Version: 580.159   CUDA Version: 13.0 |" ;;
esac
"""


class FakeNvml(SimpleNamespace):
    """A driver with one GPU that has no NVLink."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "RTX"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=24 * 2**30)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId="00000000:01:00.0")

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        raise self.NVMLError

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 4


@pytest.fixture
def smi_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.mark.usefixtures("smi_only")
def test_gpus_from_nvidia_smi() -> None:
    cards = machine.graphics()

    assert (cards.driver, cards.cuda, len(cards.gpus)) == ("580.159", "13.0", 2)
    first, second = cards.gpus
    assert first.name == "NVIDIA H200"
    assert first.memory_bytes == 143771 * 2**20
    assert (first.pcie_generation_max, first.pcie_generation, first.pcie_width) == (5, 1, 16)
    assert first.nvlinks == 2
    assert second.pcie_generation is None


def test_gpus_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    cards = machine.graphics()

    assert (cards.driver, cards.cuda) == ("570.1", "12.8")
    (gpu,) = cards.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.nvlinks) == ("RTX", 24 * 2**30, 0)
    assert (gpu.pcie_generation_max, gpu.pcie_width) == (4, None)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "/nowhere")

    assert machine.graphics() == machine.Graphics(None, None, ())


def test_description_is_plain_and_holds_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCOPE_TEST_TOKEN", "s3cr3t-value")
    described = machine.describe()
    text = json.dumps(described)

    assert described["python"] == platform.python_version()
    assert described["packages"]["numpy"]
    assert described["memory_bytes"] > 2**28
    assert "s3cr3t-value" not in text
    assert str(Path.home()) not in text.replace('"/"', "")
    for private in {platform.node(), os.environ.get("HOSTNAME", "")} - {"", "localhost"}:
        assert private not in text
    assert f'"{getpass.getuser()}"' not in text


def test_nothing_on_the_machine_is_said_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setattr(nsys, "INSTALLATIONS", ())
    found = {check.name: check for check in checks.check_all()}

    for name in ("driver", "GPU", "CUDA", "nsys", "nsys importer", "MPI"):
        assert found[name].state == checks.MISSING
        assert found[name].remedy
    assert found["dash"].state == checks.FOUND
    assert not checks.can_record(tuple(found.values()))
    assert all((check.remedy is None) == (check.state == checks.FOUND) for check in found.values())


@pytest.mark.parametrize(
    ("nsys_version", "nvtx_version", "state"),
    [
        ((2023, 4, 4), "0.2.17", checks.BROKEN),
        ((2023, 4, 4), "0.2.11", checks.FOUND),
        ((2022, 4, 2), "0.2.17", checks.FOUND),
        ((2025, 3, 2), "0.2.17", checks.FOUND),
    ],
)
def test_nvtx_and_nsys_must_fit(
    monkeypatch: pytest.MonkeyPatch, nsys_version: tuple[int, ...], nvtx_version: str, state: str
) -> None:
    monkeypatch.setattr(machine, "package_version", lambda name: nvtx_version)
    tool = nsys.Nsys(Path("nsys"), nsys_version, frozenset())

    check = checks._nvtx(tool)
    assert check.state == state
    assert (state == checks.FOUND) or "nvtx==0.2.11" in str(check.remedy)
