"""The pytest plugin: sessions of their own, with a stand-in for nsys and for the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import pytest_plugin
from gpuscope.recording import machine
from tests.unit.recording import fake_nsys

ROOT = Path(__file__).parents[2]

SMI = """\
#!/bin/sh
case "$1" in --query*) echo "0, GPU, 580.1, 1000, 00000000:01:00.0, 5, 5, 16, 16" ;; esac
"""

GOOD = """\
def test_step(gpuscope_trace):
    print("the test runs")
    streamed = gpuscope_trace("streamed")
    assert streamed.hidden("h2d", by="kernel") > 0.6
    assert gpuscope_trace("sequential").hidden("h2d", by="kernel") < 0.1
    print("and ends")
"""


AUTOLOAD = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
NOTHING = {"NSYS": "/nonexistent", "GPUSCOPE_CUPTI": "/nonexistent"}
"""An environment in which nothing can record."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def run(
    project: Path,
    *arguments: str,
    fault: str = "",
    plugin: str = "gpuscope.pytest_plugin",
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project, with an nsys whose exports are the shipped trace streams_run."""
    tools = project.parent / "tools"
    tool = fake_nsys.make(tools, fault=fault, trace="streams_run")
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, "-rs", *arguments],
        cwd=project,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # gpuscope may be installed here, or not
            "PATH": f"{tools}:{os.environ['PATH']}",
            "NSYS": str(tool),
            "XDG_CACHE_HOME": str(project.parent / "cache"),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_test_is_recorded_and_then_asks(project: Path) -> None:
    (project / "test_it.py").write_text(GOOD)

    done = run(project, "-s", "--gpuscope-out", "kept")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the test runs") == 1  # the recorded run's output is not shown
    assert "1 passed" in done.stdout
    assert (project / "kept" / "test_it.py__test_step" / "trace.sqlite").is_file()
    assert not list((project / "kept").glob("*.reached"))


def test_installed_it_is_found_by_its_entry_point(project: Path) -> None:
    site = project.parent / "site"
    info = site / "gpuscope-0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuscope\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\ngpuscope = gpuscope.pytest_plugin\n")
    (project / "test_it.py").write_text(GOOD)

    done = run(project, plugin="no:dash", PYTHONPATH=f"{site}:{ROOT}", **AUTOLOAD)

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_only_the_asking_test_is_recorded_with_its_parameters(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('size', ['a b', 'c'])\n"
        "def test_step(gpuscope_trace, size):\n"
        "    with open('log', 'a') as log:\n"
        "        print(size, 'GPUSCOPE_PYTEST_RECORDED' in os.environ, file=log)\n"
        "    gpuscope_trace('streamed')\n"
        "def test_other():\n"
        "    with open('log', 'a') as log:\n"
        "        print('other', file=log)\n"
    )

    done = run(project)

    assert "3 passed" in done.stdout
    assert (project / "log").read_text().splitlines() == [
        "a b True",
        "a b False",
        "c True",
        "c False",
        "other",
    ]


def test_what_addopts_leave_out_is_recorded_where_the_session_chose_it(project: Path) -> None:
    (project / "pytest.ini").write_text(
        "[pytest]\naddopts = -m 'not slow' -k 'not step'\nmarkers = slow\n"
    )
    (project / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--run-slow', action='store_true')\n"
    )
    (project / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.slow\n"
        "def test_step(gpuscope_trace, pytestconfig):\n"
        "    assert pytestconfig.getoption('--run-slow')\n"
        "    gpuscope_trace('streamed')\n"
    )

    done = run(project, "-m", "slow", "-k", "step", "--run-slow", "--gpuscope-args=--run-slow")

    assert "1 passed" in done.stdout, done.stdout


def test_what_fails_before_it_asks_fails_with_its_words(project: Path) -> None:
    (project / "test_it.py").write_text(
        "def test_step(gpuscope_trace):\n    raise ValueError('out of memory')\n"
    )

    done = run(project)

    assert done.returncode == 1
    assert "ended before it asked for its trace" in done.stdout
    assert "ValueError: out of memory" in done.stdout


def test_a_command_is_recorded_instead(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import sys, pytest\n"
        "@pytest.mark.gpuscope(command=[sys.executable, '-c', 'open(\"ran\", \"w\")'])\n"
        "def test_step(gpuscope_trace):\n"
        "    assert gpuscope_trace('streamed').value('instances') == 5\n"
    )

    done = run(project)

    assert "1 passed" in done.stdout, done.stdout
    assert (project / "ran").exists()


def test_a_command_that_fails_fails_the_test(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import sys, pytest\n"
        "@pytest.mark.gpuscope(command=[sys.executable, '-c', 'raise SystemExit(\"no data\")'])\n"
        "def test_step(gpuscope_trace):\n"
        "    pass\n"
    )

    done = run(project)

    assert done.returncode == 1
    assert "recording ended with exit code 1" in done.stdout
    assert "no data" in done.stdout


def test_a_trace_beside_the_test_needs_no_gpu_and_nothing_passes_silently(project: Path) -> None:
    sample = ROOT / "traces" / "streams_run.sqlite"
    (project / "good.sqlite").write_bytes(sample.read_bytes())
    (project / "test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.gpuscope(trace='good.sqlite')\n"
        "def test_met(gpuscope_trace):\n"
        "    assert gpuscope_trace('streamed').overlap('h2d', 'kernel') > 0.8\n"
        "def test_not_met(gpuscope_trace):\n"
        "    gpuscope_trace('sequential').expect('hidden(h2d, kernel) >= 60 %')\n"
        "def test_unknown(gpuscope_trace):\n"
        "    assert gpuscope_trace('nope').exposed('h2d') < 1\n"
        "@pytest.mark.gpuscope(trase='x')\n"
        "def test_marker(gpuscope_trace):\n    pass\n"
    )

    done = run(project, **NOTHING)

    assert "1 passed" in done.stdout
    assert "2 failed" in done.stdout
    assert "1 error" in done.stdout
    assert "sequential: hidden(h2d, kernel) >= 60 % is not met: 0.0 %" in done.stdout
    assert "there is no range 'nope'" in done.stdout
    assert "takes trace=, command= and attribute= only" in done.stdout


def test_without_a_recorder_it_skips_with_the_reason_or_fails_if_told(project: Path) -> None:
    (project / "test_it.py").write_text(GOOD)

    skipped = run(project, **NOTHING)
    failed = run(project, "--gpuscope-require", **NOTHING)

    assert skipped.returncode == 0
    assert "1 skipped" in skipped.stdout
    assert "nothing can be recorded: " in skipped.stdout
    assert failed.returncode == 1
    assert "nothing can be recorded: " in failed.stdout


def test_an_importer_that_does_not_run_skips_too(project: Path) -> None:
    (project / "test_it.py").write_text(GOOD)

    done = run(project, fault="importer-fails")

    assert "1 skipped" in done.stdout, done.stdout
    assert "importer" in done.stdout


def test_without_a_gpu_it_skips_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        def getoption(self, name: str) -> bool:
            return False

    class Request:
        config = Config()

    monkeypatch.setattr(machine, "graphics", lambda: machine.Graphics(None, None, ()))

    with pytest.raises(pytest.skip.Exception, match="there is no NVIDIA GPU"):
        pytest_plugin._record(Request(), None)  # type: ignore[arg-type]


def test_the_plugin_imports_nothing_but_pytest_and_costs_others_nothing() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import gpuscope.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    allowed = {"gpuscope", "gpuscope._version", "gpuscope.errors", "gpuscope.pytest_plugin"}
    assert set(done.stdout.split()) <= allowed
