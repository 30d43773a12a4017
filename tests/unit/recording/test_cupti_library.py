"""libcupti is found where pip and toolkits put it, and must fit the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.errors import MissingError
from gpuscope.recording.cupti import library


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with a driver of CUDA 13.0 and nothing else; returns where packages would be."""
    for variable in (library.VARIABLE, "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(library, "driver_cuda_version", lambda: 13000)
    monkeypatch.setattr(library, "TOOLKITS", str(tmp_path / "toolkits" / "cuda*"))
    return tmp_path / "packages"


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_nothing_is_there(bare: Path) -> None:
    with pytest.raises(MissingError, match=r"not installed: pip install 'gpuscope\[cuda13\]'"):
        library.find([str(bare)])


def test_no_driver(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "driver_cuda_version", lambda: None)
    with pytest.raises(MissingError, match="no NVIDIA driver here"):
        library.find([str(bare)])


@pytest.mark.parametrize(
    "place",
    [
        "packages/nvidia/cu13/lib/libcupti.so.13",
        "packages/nvidia/cuda_cupti/lib/libcupti.so.13",
        "toolkits/cuda-13.0/lib64/libcupti.so.13",
        "toolkits/cuda-13.0/extras/CUPTI/lib64/libcupti.so.13",
        "toolkits/cuda/targets/x86_64-linux/lib/libcupti.so.13",
    ],
)
def test_every_place_it_is_installed_to(bare: Path, place: str) -> None:
    path = touch(bare.parent / place)

    assert library.find([str(bare)]) == path


def test_packages_come_before_toolkits_and_newer_before_older(bare: Path) -> None:
    old = touch(bare / "nvidia/cuda_cupti/lib/libcupti.so.12")
    assert library.find([str(bare)]) == old
    toolkit = touch(bare.parent / "toolkits/cuda-13.0/lib64/libcupti.so.13")
    assert library.find([str(bare)]) == toolkit
    package = touch(bare / "nvidia/cu13/lib/libcupti.so.13")
    assert library.find([str(bare)]) == package


def test_one_that_is_newer_than_the_driver(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "driver_cuda_version", lambda: 12080)
    touch(bare / "nvidia/cu13/lib/libcupti.so.13")
    with pytest.raises(
        MissingError, match=r"of CUDA 13, and the driver supports CUDA 12\.8 at most.*\[cuda12\]"
    ):
        library.find([str(bare)])
    fitting = touch(bare / "nvidia/cuda_cupti/lib/libcupti.so.12")
    assert library.find([str(bare)]) == fitting


def test_the_variable_decides(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(bare / "nvidia/cu13/lib/libcupti.so.13")
    monkeypatch.setenv(library.VARIABLE, "/elsewhere/libcupti.so.13")

    assert library.find([str(bare)]) == Path("/elsewhere/libcupti.so.13")


@pytest.mark.parametrize("content", [None, b"no library"])
def test_what_is_no_library(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "libcupti.so.13"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MissingError, match="does not load as libcupti"):
        library.Library(path)


def test_a_library_of_something_else() -> None:
    with pytest.raises(MissingError, match="does not load as libcupti"):
        library.Library(Path("libc.so.6"))
