"""Each run is a process of its own, as a user's is."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpuscope


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


def run_gpuscope(
    folder: Path, *words: str, tree: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `gpuscope run`; `tree` is where its code is taken from, if not where it is now."""
    command = [sys.executable, "-m", "gpuscope", "run", "--out", str(folder), *words]
    paths = [str(tree)] * (tree is not None) + [os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=tree, env=environment
    )


def copy_without(wait: str, file: str, tree: Path) -> Path:
    """Copy the code to a tree, and leave a wait out of one file; return the tree."""
    here, copy = Path(gpuscope.__file__).parent, tree / "gpuscope"
    shutil.copytree(here, copy, ignore=shutil.ignore_patterns("traces", "__pycache__"))
    code = copy / "benchmarks" / file
    whole = code.read_text()
    assert whole.count(wait) == 1
    indent = wait[: -len(wait.lstrip())]
    code.write_text(whole.replace(wait, f"{indent}pass"))
    return tree


@dataclass(frozen=True)
class Run:
    """A `gpuscope run` that has ended."""

    folder: Path
    done: subprocess.CompletedProcess[str]

    @property
    def untraced(self) -> dict[str, Any]:
        """The result of all ranks, without a profiler."""
        found: dict[str, Any] = json.loads((self.folder / "rank0" / "untraced.json").read_text())
        return found

    @property
    def met(self) -> bool:
        """Whether the trace was judged, and shows all that it must."""
        expected = json.loads((self.folder / "run.json").read_text())["expected"]
        return bool(expected) and all(row["met"] for row in expected)


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., Run]:
    """Run a benchmark of ranks by `gpuscope run`, which must end with code 0 or another of these.

    Each gets a folder of its own. `tree` is where the code is taken from, if not where it is now.
    """
    count = itertools.count()

    def ran(*words: str, codes: Collection[int] = (0,), tree: Path | None = None) -> Run:
        folder = tmp_path / f"run{next(count)}"
        done = run_gpuscope(folder, *words, tree=tree)
        assert done.returncode in codes, done.stdout + done.stderr
        return Run(folder, done)

    return ran
