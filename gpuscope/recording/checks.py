"""What gpuscope needs on a machine: for each thing whether it is there, and how to get it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import MissingError
from gpuscope.recording import machine, nsys, process
from gpuscope.recording.cupti import library

FOUND = "found"
MISSING = "missing"
BROKEN = "broken"

RECORDING = "recording"
WITHOUT_NSYS = "recording without nsys"
BENCHMARKS = "benchmarks"
SEVERAL_GPUS = "several GPUs"
VIEWING = "the page"

_NSYS_WITHOUT_NEW_NVTX = (2023, 4)
_NEWEST_NVTX_FOR_IT = (0, 2, 11)
_CUPY_PROBE = (
    "import cupy; version = cupy.cuda.runtime.runtimeGetVersion();"
    "print(cupy.__version__, f'{version // 1000}.{version % 1000 // 10}', sep=' with CUDA ')"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked for."""

    name: str
    state: str
    """``found``, ``missing``, or ``broken``: there, but of no use."""
    detail: str
    """What was found, or what is wrong."""
    remedy: str | None
    """The command, or else the sentence, that brings it; None when it is found."""
    needed_for: str


def check_all() -> tuple[Check, ...]:
    """Look for everything; takes a few seconds, because nsys and CuPy are really started."""
    cards = machine.graphics()
    found_nsys, nsys_check, importer_check = _nsys()
    return (
        _driver(cards),
        _gpu(cards),
        _cuda(cards),
        nsys_check,
        importer_check,
        _cupti(),
        _cupy(cards),
        _nvtx(found_nsys),
        _mpi(),
        _package("mpi4py", SEVERAL_GPUS, 'pip install "gpuscope[mpi]"'),
        _nccl(cards),
        _nvshmem(),
        *(_package(name, VIEWING) for name in ("plotly", "dash", "pandas")),
    )


def can_record(checks: tuple[Check, ...]) -> bool:
    """Whether all that ``gpuscope run --nsys -- COMMAND`` needs is there."""
    return all(check.state == FOUND for check in checks if check.needed_for == RECORDING)


def _driver(cards: machine.Graphics) -> Check:
    if cards.driver:
        return Check("driver", FOUND, cards.driver, None, RECORDING)
    remedy = "sudo apt-get install nvidia-driver (Debian's non-free section), then reboot"
    if Path("/.dockerenv").exists():
        remedy = "start the container with --gpus all"
    return Check("driver", MISSING, "no NVIDIA driver answers", remedy, RECORDING)


def _gpu(cards: machine.Graphics) -> Check:
    if not cards.gpus:
        remedy = "run on a machine with an NVIDIA GPU; `gpuscope demo` needs none"
        return Check("GPU", MISSING, "no NVIDIA GPU", remedy, RECORDING)
    names = [gpu.name for gpu in cards.gpus]
    listed = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    first = cards.gpus[0]
    link = f"PCIe {first.pcie_generation_max or '?'} ×{first.pcie_width_max or '?'}"
    if first.nvlinks:
        link += f", NVLink ×{first.nvlinks}"
    return Check("GPU", FOUND, f"{listed} ({link})", None, RECORDING)


def _cuda(cards: machine.Graphics) -> Check:
    if cards.cuda:
        return Check("CUDA", FOUND, f"{cards.cuda}, by the driver", None, RECORDING)
    return Check("CUDA", MISSING, "comes with the driver", "install the driver", RECORDING)


def _nsys() -> tuple[nsys.Nsys | None, Check, Check]:
    try:
        found = nsys.find()
    except MissingError as error:
        remedy = "sudo apt-get install nsight-systems (Debian's non-free section), or set NSYS"
        return (
            None,
            Check("nsys", MISSING, str(error).partition(":")[0], remedy, RECORDING),
            Check("nsys importer", MISSING, "comes with nsys", "install nsys", RECORDING),
        )
    problem = nsys.importer_problem(found)
    importer = (
        Check("nsys importer", FOUND, "recorded and imported a test", None, RECORDING)
        if problem is None
        else Check("nsys importer", BROKEN, problem, _importer_remedy(found), RECORDING)
    )
    detail = f"{found.version_text} ({found.path})"
    return found, Check("nsys", FOUND, detail, None, RECORDING), importer


def _importer_remedy(found: nsys.Nsys) -> str:
    names = nsys.missing_libraries(found)
    packages = dict.fromkeys(
        nsys.LIBRARY_PACKAGES[name] for name in names if name in nsys.LIBRARY_PACKAGES
    )
    return f"sudo apt-get install {' '.join(packages)}" if packages else "install nsys again, whole"


def _cupti() -> Check:
    try:
        found = library.Library(library.find())
    except MissingError as error:
        detail, _, remedy = str(error).partition(": ")
        return Check("cupti", MISSING, detail, remedy, WITHOUT_NSYS)
    detail = f"{found.version_text} ({found.path})"
    return Check("cupti", FOUND, detail, None, WITHOUT_NSYS)


def _cupy(cards: machine.Graphics) -> Check:
    extra = "cuda12" if cards.cuda and cards.cuda.startswith("12") else "cuda13"
    remedy = f'pip install "gpuscope[{extra}]"'
    if importlib.util.find_spec("cupy") is None:
        return Check("CuPy", MISSING, "not installed", remedy, BENCHMARKS)
    code, text = process.output([sys.executable, "-c", _CUPY_PROBE], timeout_s=60)
    last = text.strip().splitlines()[-1:] or ["no answer"]
    if code != 0:
        return Check("CuPy", BROKEN, last[0], remedy, BENCHMARKS)
    return Check("CuPy", FOUND, last[0], None, BENCHMARKS)


def _nvtx(found_nsys: nsys.Nsys | None) -> Check:
    version = machine.package_version("nvtx")
    if version is None:
        return Check("nvtx", MISSING, "not installed", "pip install nvtx", BENCHMARKS)
    parts = tuple(int(part) for part in version.split(".") if part.isdecimal())
    if (
        found_nsys is not None
        and found_nsys.version[:2] == _NSYS_WITHOUT_NEW_NVTX
        and parts > _NEWEST_NVTX_FOR_IT
    ):
        detail = f"{version}, of which nsys {found_nsys.version_text} records no range"
        remedy = "pip install nvtx==0.2.11, or install a newer nsys"
        return Check("nvtx", BROKEN, detail, remedy, BENCHMARKS)
    return Check("nvtx", FOUND, version, None, BENCHMARKS)


def _mpi() -> Check:
    version = machine.mpi_version()
    if version:
        return Check("MPI", FOUND, version, None, SEVERAL_GPUS)
    state = BROKEN if shutil.which("mpirun") else MISSING
    detail = "mpirun does not run" if state == BROKEN else "no mpirun on the PATH"
    remedy = "sudo apt-get install openmpi-bin libopenmpi-dev"
    return Check("MPI", state, detail, remedy, SEVERAL_GPUS)


def _nccl(cards: machine.Graphics) -> Check:
    version = machine.nccl_version()
    if version:
        return Check("NCCL", FOUND, version, None, SEVERAL_GPUS)
    cuda = "12" if cards.cuda and cards.cuda.startswith("12") else "13"
    remedy = f"pip install nvidia-nccl-cu{cuda}"
    return Check("NCCL", MISSING, "no libnccl.so.2", remedy, SEVERAL_GPUS)


def _nvshmem() -> Check:
    library, bindings = map(machine.package_version, ("nvshmem", "nvshmem4py"))
    if library and bindings:
        return Check("NVSHMEM", FOUND, f"{library}, nvshmem4py {bindings}", None, SEVERAL_GPUS)
    remedy = 'pip install "gpuscope[nvshmem]"'
    return Check("NVSHMEM", MISSING, "not installed", remedy, SEVERAL_GPUS)


def _package(name: str, needed_for: str, remedy: str | None = None) -> Check:
    version = machine.package_version(name)
    if version:
        return Check(name, FOUND, version, None, needed_for)
    return Check(name, MISSING, "not installed", remedy or f"pip install {name}", needed_for)
