"""`gpuscope info`: what a trace holds, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope import samples
from gpuscope.cli import info, main
from gpuscope.readers import nsys_schema
from tests.make_export import VARIANTS, Export


def described(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    assert main(["info", str(path), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_everything_of_a_shipped_trace(capsys: pytest.CaptureFixture[str]) -> None:
    content = described(capsys, samples.path("streams"))
    assert next(iter(content)) == "schema_version"
    assert content["exported_by"] == "2025.3.2.0"
    assert content["machine"]["CudaDriverVersion"] == "13000"
    assert content["duration_ns"] == 84099822
    assert content["table_rows"]["CUPTI_ACTIVITY_KIND_MEMCPY"] == 50
    assert content["recorded"]["mpi"] is None
    assert {name: row["count"] for name, row in content["classes"].items()} == {
        "kernel": 25,
        "h2d": 25,
        "d2h": 25,
    }
    assert content["devices"][0]["name"] == "NVIDIA H200"
    assert content["processes"][0]["operations"] == 75
    assert {check["state"] for check in content["checks"]} == {"ok"}


def test_people_see_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(samples.path("jacobi_nccl_r0"))]) == 0
    said = capsys.readouterr().out
    for part in (
        "exported by 2025.3.2.0",
        "NVIDIA H200, 132 SMs, 3 copy engines",
        "MPI rank 0: 429 GPU operations",
        "MPI calls: 12",
        "✓ lost records: every kernel launch left its GPU record",
    ):
        assert part in said


@pytest.mark.parametrize("variant", ["2020", "no GPU info"])
def test_an_export_that_says_little(
    variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.sqlite"
    with Export(path, VARIANTS[variant]) as export:
        export.operation("KERNEL", 0, 10, shortName="k")
    assert main(["info", str(path)]) == 0
    assert "– recording: the profiler wrote no messages down" in capsys.readouterr().out
    content = described(capsys, path)
    assert content["captured_by"] is None
    assert content["recorded"]["api"] is None
    assert content["environment"] == {}


def test_nothing_private_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.sqlite"
    with Export(path) as export:
        export.operation("KERNEL", 0, 10, shortName="k")
        export.add("PROCESSES", globalPid=100 << 24, pid=100, name="/home/secret/app")
        for name in ("Hostname", "OsDescription", "CpuCores"):
            export.add("TARGET_INFO_SYSTEM_ENV", name=name, value="secret\x1b[31m;")
        export.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value="/bin/secret")
        export.add("DIAGNOSTIC_EVENT", severity=3, text="/home/secret is gone")
    for options in ([], ["--json"]):
        assert main(["info", str(path), *options]) == 0
        assert "secret" not in capsys.readouterr().out


def test_what_is_no_trace_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no trace")
    assert main(["info", str(path)]) == 1
    assert "is not a trace" in capsys.readouterr().err


def test_the_machine_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(samples.path("streams"))]) == 0
    told = "16 cores, x86_64, Ubuntu 24.04.3 LTS, driver 580.159.04, CUDA 13.0"
    out = " ".join(capsys.readouterr().out.split())
    assert f"machine Intel(R) Xeon(R) Processor, {told} GPU 0" in out


def test_all_that_may_be_told_of_a_machine_has_its_words() -> None:
    assert {name for name, _ in info._MACHINE} == set(nsys_schema.MACHINE_ALLOWED)
