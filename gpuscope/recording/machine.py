"""What a recording was made on: GPUs and their links, driver, libraries, processor, system.

Nothing here is private: no host or user name, no environment, no serial number. GPUs are asked for
through NVML (package ``nvidia-ml-py``), or through ``nvidia-smi`` where that package is missing.
No CUDA context is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuscope.recording import process

PACKAGES = {
    "gpuscope": ("gpuscope",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "nvtx": ("nvtx",),
    "mpi4py": ("mpi4py",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "nvshmem": ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"),
    "nvshmem4py": ("nvshmem4py-cu13", "nvshmem4py-cu12"),
    "numpy": ("numpy",),
}
"""The packages whose versions matter to a measurement, and the names they are installed under."""

_NVLINK_MAX_LINKS = 18
_SMI_QUERY = (
    "index,name,driver_version,memory.total,pci.bus_id,"
    "pcie.link.gen.max,pcie.link.gen.current,pcie.link.width.max,pcie.link.width.current"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None is "not recorded"."""

    index: int
    name: str
    memory_bytes: int | None
    pci_bus_id: str
    pcie_generation_max: int | None
    pcie_generation: int | None
    """The current one: an idle link reports a lower generation than it reaches under load."""
    pcie_width_max: int | None
    pcie_width: int | None
    nvlinks: int | None
    """Active NVLink connections."""
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class Graphics:
    """The driver and its GPUs."""

    driver: str | None
    cuda: str | None
    """The newest CUDA the driver supports."""
    gpus: tuple[Gpu, ...]


def graphics() -> Graphics:
    """Ask the driver for its GPUs; none, and no driver, where there is none."""
    return _from_nvml() or _from_nvidia_smi() or Graphics(None, None, ())


def describe() -> dict[str, Any]:
    """Return everything as plain values, for ``run.json`` and ``gpuscope doctor --json``."""
    cards = graphics()
    return {
        "gpus": [asdict(gpu) for gpu in cards.gpus],
        "driver": cards.driver,
        "cuda": cards.cuda,
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "nccl": nccl_version(),
        "mpi": mpi_version(),
        "cpu": _cpu_model(),
        "logical_cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": system(),
        "kernel": platform.release(),
    }


def package_version(name: str) -> str | None:
    """Return the version of an installed package, without importing it."""
    for distribution in PACKAGES.get(name, (name,)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return None


def nccl_version() -> str | None:
    """Return the version of NCCL: the installed package's, else the system library's."""
    if packaged := package_version("nccl"):
        return packaged
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    # From 2.9 on the number is 10000·major + 100·minor + patch.
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def mpi_version() -> str | None:
    """Return what mpirun calls itself, such as ``mpirun (Open MPI) 4.1.4``."""
    code, text = process.output(["mpirun", "--version"], timeout_s=10)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if code == 0 and lines else None


def mpi_rank() -> int | None:
    """Return the rank that mpirun or srun gave this process; None where it is alone."""
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if os.environ.get(rank, "").isdecimal() and os.environ.get(size) != "1":
            return int(os.environ[rank])
    return None


def console_options() -> dict[str, Any]:
    """Return what consoles are to be told: text alone under NO_COLOR, and in ranks.

    Open MPI gives its ranks a terminal, whatever it writes to itself.
    """
    if mpi_rank() is not None:
        return {"color_system": None, "force_terminal": False}
    return {"color_system": None} if os.environ.get("NO_COLOR") else {}


def _from_nvml() -> Graphics | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Graphics(
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(function: str, *args: int) -> Any:
        try:
            return getattr(nvml, function)(handle, *args)
        except (nvml.NVMLError, AttributeError):
            return None  # this GPU or this driver does not have it

    memory = ask("nvmlDeviceGetMemoryInfo")
    links = [ask("nvmlDeviceGetNvLinkState", link) for link in range(_NVLINK_MAX_LINKS)]
    bus_id = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory and int(memory.total),
        pci_bus_id=bus_id,
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        nvlinks=sum(state == 1 for state in links),
        numa_node=_numa_node(bus_id),
    )


def _from_nvidia_smi() -> Graphics | None:
    code, text = process.output(
        ["nvidia-smi", f"--query-gpu={_SMI_QUERY}", "--format=csv,noheader,nounits"]
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == _SMI_QUERY.count(",") + 1 and row[0].isdecimal()]
    if code != 0 or not rows:
        return None
    _, banner = process.output(["nvidia-smi"])
    cuda = banner.partition("CUDA Version:")[2].split()[:1]
    return Graphics(
        driver=rows[0][2],
        cuda=cuda[0] if cuda else None,
        gpus=tuple(
            Gpu(
                index=int(row[0]),
                name=row[1],
                memory_bytes=mebibytes * 2**20 if (mebibytes := _number(row[3])) else None,
                pci_bus_id=row[4],
                pcie_generation_max=_number(row[5]),
                pcie_generation=_number(row[6]),
                pcie_width_max=_number(row[7]),
                pcie_width=_number(row[8]),
                nvlinks=_smi_nvlinks(int(row[0])),
                numa_node=_numa_node(row[4]),
            )
            for row in rows
        ),
    )


def _smi_nvlinks(index: int) -> int | None:
    code, text = process.output(["nvidia-smi", "nvlink", "--status", "-i", str(index)])
    return sum("GB/s" in line for line in text.splitlines()) if code == 0 else None


def _numa_node(bus_id: str) -> int | None:
    """Read the GPU's NUMA node from the kernel, which writes -1 where there is only one."""
    with contextlib.suppress(OSError, ValueError):
        domain_and_rest = bus_id.lower()[-12:]
        node = int(Path(f"/sys/bus/pci/devices/{domain_and_rest}/numa_node").read_text())
        return node if node >= 0 else None
    return None


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def system() -> str:
    """Return the name of the operating system."""
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return platform.system()


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
