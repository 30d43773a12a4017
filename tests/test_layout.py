"""The tree is what docs/architecture.md says: registries, links, public names, imports, traces."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuscope
from gpuscope import analyzers, benchmarks, samples
from gpuscope.errors import MissingError, UsageError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpuscope"

HOMES = {
    "sqlite3": {"readers", "recording"},  # recording writes what CUPTI recorded
    "connectorx": {"readers"},
    "subprocess": {"recording"},
    "cupy": {"benchmarks", "recording"},
    "mpi4py": {"benchmarks", "recording"},
    "nvshmem": {"benchmarks"},
    "cuda": {"benchmarks"},
    "nvtx": {"benchmarks", "recording"},
    "pynvml": {"benchmarks", "recording"},
    "dash": {"app"},
    "csv": {"report"},  # so that no cell is a formula
}
"""Which parts of the package may import a module that the rest must do without."""


def imports() -> Iterator[tuple[str, str]]:
    """Yield (part of the package, imported top-level module) for every import there is."""
    for file in PACKAGE.rglob("*.py"):
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from ((part, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield part, node.module.partition(".")[0]


@pytest.mark.parametrize("name", ["analyzers", "traces"])
def test_top_folder_is_linked_into_the_package(name: str) -> None:
    assert (PACKAGE / name).readlink() == Path("..", name)
    assert (ROOT / name).is_dir()


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        ([analyzer.name for analyzer in analyzers.ANALYZERS], ROOT / "analyzers"),
        ([benchmark.name for benchmark in benchmarks.BENCHMARKS], PACKAGE / "benchmarks"),
    ],
    ids=["analyzers", "benchmarks"],
)
def test_registry_and_folder_agree(names: list[str], folder: Path) -> None:
    files = {file.stem.replace("_", "-") for file in folder.glob("[!_]*.py")}

    assert set(names) == files
    assert len(names) == len(files)


def test_analyzers_cannot_be_imported_from_the_top() -> None:
    with pytest.raises(ImportError, match=r"gpuscope\.analyzers"):
        __import__("analyzers")


def test_public_names() -> None:
    names = ["GpuscopeError", "Overlap", "Ranks", "Trace", "__version__"]
    names += ["load", "load_ranks", "record"]
    assert sorted(gpuscope.__all__) == names
    assert all(hasattr(gpuscope, name) for name in gpuscope.__all__)
    assert set(gpuscope.__all__) <= set(dir(gpuscope))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = gpuscope.lode


def test_special_modules_are_imported_only_where_they_belong() -> None:
    strays = {(part, name) for part, name in imports() if part not in HOMES.get(name, {part})}

    assert not strays


def test_every_home_is_a_part_of_the_package() -> None:
    assert {part for parts in HOMES.values() for part in parts} <= {part for part, _ in imports()}


def test_manifest_names_the_traces_in_the_folder() -> None:
    assert sorted(samples.names()) == sorted(file.stem for file in samples.FOLDER.glob("*.sqlite"))


@pytest.mark.parametrize("name", samples.names())
def test_shipped_trace_is_the_one_in_the_manifest(name: str) -> None:
    row = samples.manifest()[name]

    assert row["sha256"] == hashlib.sha256(samples.path(name).read_bytes()).hexdigest()
    assert {"gpu", "driver", "command", "program", "shows"} < row.keys()
    assert ("nsys" in row) != ("recorder" in row)  # what recorded it
    assert samples.path(name).stat().st_size < 1_000_000


def test_unknown_sample_is_a_usage_error_that_lists_the_names() -> None:
    with pytest.raises(UsageError, match=r"'streems'.*streams, pinned"):
        samples.path("streems")


def test_incomplete_installation_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "FOLDER", tmp_path)
    with pytest.raises(MissingError, match=r"MANIFEST\.toml is missing"):
        samples.names()

    (tmp_path / "MANIFEST.toml").write_text("[streams]\n")
    with pytest.raises(MissingError, match=r"streams\.sqlite is missing"):
        samples.path("streams")
