"""What is built and installed: the wheel, from the checkout and from the sdist, used on its own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gpuscope import __version__, samples

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """Run `command` away from the checkout and return what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: str, folder: Path) -> Path:
    """Build the `target` of the project in `source` and return the only file that came out."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A new environment with nothing in it but the wheel and what it depends on."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
    run(venv / "bin" / "pip", "install", "--quiet", wheel, cwd=venv.parent)
    return venv


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        links = [i.filename for i in archive.infolist() if stat.S_ISLNK(i.external_attr >> 16)]

    tops = {name.partition("/")[0] for name in names}
    assert tops == {"gpuscope", f"gpuscope-{__version__}.dist-info"}
    assert not links
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_holds_every_file_of_the_checkout(wheel: Path) -> None:
    tracked = run("git", "ls-files", "gpuscope", "analyzers", "traces", cwd=ROOT).splitlines()
    real = [name for name in tracked if not (ROOT / name).is_symlink()]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    expected = {n if n.startswith("gpuscope/") else f"gpuscope/{n}" for n in real}
    assert expected <= names
    assert any(name.startswith("gpuscope/app/assets/") for name in expected)


def test_sdist_has_no_links_and_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    # What a Python of 3.11.2, as Debian 12 has it, unpacks without a warning differs from 3.12's.
    subprocess.run(["tar", "-xf", sdist, "-C", tmp_path], check=True)

    rebuilt = build(tmp_path / f"gpuscope-{__version__}", "wheel", tmp_path / "rebuilt")

    assert rebuilt.read_bytes() == wheel.read_bytes()


def test_installed_files_lie_under_gpuscope(empty: Path) -> None:
    (record,) = empty.glob(f"lib/*/site-packages/gpuscope-{__version__}.dist-info/RECORD")

    installed = {line.partition(",")[0] for line in record.read_text().splitlines()}

    assert {name for name in installed if not name.startswith(("gpuscope/", "gpuscope-"))} == {
        "../../../bin/gpuscope"
    }


def test_installed_package_works_without_the_checkout(empty: Path, tmp_path: Path) -> None:
    program = empty / "bin" / "gpuscope"
    code = "from gpuscope import samples; print(samples.path('streams'))"
    trace = Path(run(empty / "bin" / "python", "-c", code, cwd=tmp_path).strip())

    assert trace.is_relative_to(empty)
    assert trace.read_bytes() == samples.path("streams").read_bytes()
    assert run(program, "--version", cwd=tmp_path) == f"gpuscope {__version__}\n"
    assert "streams" in run(program, "list", cwd=tmp_path)
    assert json.loads(run(program, "analyze", trace, "--json", cwd=tmp_path))["schema_version"] == 1
    assert not list(tmp_path.iterdir())
