"""Each run is a process of its own, as a user's is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark `name` to its end."""
    command = [sys.executable, "-m", "gpuscope.benchmarks", name, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


@pytest.fixture
def run_benchmark() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run a benchmark, and return the result that it must have written."""

    def measured(name: str, *arguments: str) -> dict[str, Any]:
        file = tmp_path / "result.json"
        done = run(name, *arguments, "--result", str(file))
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(file.read_text())
        assert found["valid"], found["notes"]
        return found

    return measured
