"""Every kernel compiles for every GPU that is supported: NVRTC needs none to be there."""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from gpuscope import benchmarks

ARCHITECTURES = (75, 80, 86, 89, 90, 100)
"""From Turing to Blackwell."""


def find_nvrtc() -> Path | None:
    """Return the library of the wheel `nvidia-cuda-nvrtc`."""
    try:
        files = metadata.files("nvidia-cuda-nvrtc") or ()
    except metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files)
    return next((file for file in found if file.name.startswith("libnvrtc.so")), None)


LIBRARY = find_nvrtc()


def sources() -> Iterator[tuple[str, str]]:
    """Yield (module, CUDA source) for each source in the benchmarks and what they share."""
    for found in pkgutil.walk_packages(benchmarks.__path__, "gpuscope.benchmarks."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if isinstance(value, str) and name.endswith("_SOURCE"):
                yield found.name.removeprefix("gpuscope.benchmarks."), value


def compile_log(source: str, architecture: int) -> str | None:
    """Compile CUDA source; return what the compiler says if it fails or warns, else None."""
    nvrtc = ctypes.CDLL(str(LIBRARY))
    program = ctypes.c_void_p()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None)
    assert made == 0
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{architecture}".encode())
    try:
        failed = nvrtc.nvrtcCompileProgram(program, 1, options) != 0
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.value.decode().strip()
        return text or ("failed without a word" if failed else None)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def test_every_module_with_a_kernel_is_found() -> None:
    names = {name for name, _ in sources()}
    assert {
        "_harness.stencil",
        "hyperq",
        "_harness.chunks",
        "_harness.data",
        "_harness.gpu",
    } <= names


@pytest.mark.skipif(LIBRARY is None, reason="nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in sources()])
def test_kernels_compile_without_a_warning(source: str, architecture: int) -> None:
    assert compile_log(source, architecture) is None


@pytest.mark.skipif(LIBRARY is None, reason="nvidia-cuda-nvrtc is not installed")
def test_a_mistake_is_seen() -> None:
    assert "identifier" in (compile_log('extern "C" __global__ void f() { x = 1; }', 90) or "")
