"""`gpuscope doctor`: what is there, what is not, and the way to get it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpuscope.cli import main
from gpuscope.recording import machine, nsys
from tests.unit.recording import fake_nsys

H200 = machine.Gpu(0, "H200", 143 * 10**9, "00000000:18:00.0", 5, 1, 16, 16, 18, 0)


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    cards = machine.Graphics("580.159", "13.0", (H200, H200))
    monkeypatch.setattr(machine, "graphics", lambda: cards)
    monkeypatch.setenv("NSYS", str(fake_nsys.make(tmp_path)))
    return tmp_path


@pytest.mark.usefixtures("gpu_machine")
def test_a_machine_that_can_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0

    out = capsys.readouterr().out
    assert "✓ driver         580.159" in out
    assert "✓ GPU            2 × H200 (PCIe 5 ×16, NVLink ×18)" in out
    assert "✓ nsys           2025.3.2.474" in out
    assert "✓ nsys importer  recorded and imported a test" in out
    assert out.endswith("Programs can be recorded here.\n")


def test_an_importer_that_does_not_run(
    gpu_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_nsys.make(gpu_machine, fault="no-importer")
    nsys.examine.cache_clear()
    monkeypatch.setattr(nsys, "missing_libraries", lambda tool: ("libdw.so.1",))

    assert main(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "✗ nsys importer" in out
    assert "→ sudo apt-get install libdw1" in out


def test_a_bare_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setattr(nsys, "INSTALLATIONS", ())

    assert main(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "→ sudo apt-get install nsight-systems" in out
    assert "cannot be recorded here yet" in out


@pytest.mark.usefixtures("gpu_machine")
def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["can_record"] is True
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert states["nsys"] == "found"
    assert set(states.values()) <= {"found", "missing", "broken"}
    assert report["machine"]["gpus"][0]["nvlinks"] == 18


@pytest.mark.usefixtures("gpu_machine")
@pytest.mark.parametrize(
    ("versions", "line"),
    [
        ({"nvshmem": "3.4.5", "nvshmem4py": "0.4.1"}, "✓ NVSHMEM        3.4.5, nvshmem4py 0.4.1"),
        ({"nvshmem": "3.4.5"}, "– NVSHMEM        not installed"),
    ],
)
def test_nvshmem_is_the_library_and_its_bindings(
    versions: dict[str, str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "package_version", versions.get)
    main(["doctor"])
    assert line in capsys.readouterr().out
