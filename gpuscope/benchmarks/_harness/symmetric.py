"""NVSHMEM: memory alike on all GPUs, which each of them writes and reads at the others.

An array is made by all ranks together, at the same place of each rank's heap: a rank that knows an
address in its own array names with it the same place of another's. ::

    put           source here  ──►  target there
    get           target here  ◄──  source there
    put_signal    source here  ──►  target there, then a number to a signal there
    wait          … until the signal here has reached a number

All of these are issued to a stream and return at once.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuscope.benchmarks._harness.ranks import Ranks, refuse_shared_gpus
from gpuscope.errors import MissingError, ProgramError, UsageError

INSTALL_HINT = "`pip install 'gpuscope[nvshmem]'` brings it, for CUDA 13"
_HEAP_SPARE_BYTES = 64 << 20
"""For signals and what the library rounds up."""
_HEAP_VARIABLE = "NVSHMEM_SYMMETRIC_SIZE"
_HEAP_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)([kmgt]?)", re.IGNORECASE)


class Heap:
    """Arrays that all ranks have alike, and what moves them; made by :func:`open_heap`.

    Attributes
    ----------
    rank, size
        This rank, and how many there are: NVSHMEM counts them as MPI does.
    left_bytes
        What further arrays may take.
    """

    def __init__(self, core: Any, bindings: Any, size_bytes: int) -> None:
        self._core, self._bindings = core, bindings
        self._arrays: list[Any] = []
        self._modules: list[Any] = []
        self.left_bytes = size_bytes
        self.rank: int = bindings.my_pe()
        self.size: int = bindings.n_pes()
        self._set = int(core.SignalOp.SIGNAL_SET)
        self._reached = int(core.ComparisonType.CMP_GE)

    def array(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Make an array on every rank; all must ask for the same."""
        import numpy as np

        made = self._core.array(shape, dtype=dtype)
        self.left_bytes -= math.prod(shape) * np.dtype(dtype).itemsize
        self._arrays.append(made)
        return made

    def signals(self, count: int) -> Any:
        """Make signals, each 0, on every rank."""
        made = self.array((count,), "uint64")
        made.fill(0)
        return made

    def put(self, target: int, source: int, size_bytes: int, peer: int, stream: Any) -> None:
        """Issue a copy from the address `source` here to `target` at rank `peer`."""
        self._bindings.putmem_on_stream(target, source, size_bytes, peer, stream.ptr)

    def get(self, target: int, source: int, size_bytes: int, peer: int, stream: Any) -> None:
        """Issue a copy from the address `source` at rank `peer` to `target` here."""
        self._bindings.getmem_on_stream(target, source, size_bytes, peer, stream.ptr)

    def put_signal(
        self,
        target: int,
        source: int,
        size_bytes: int,
        signal: int,
        value: int,
        peer: int,
        stream: Any,
    ) -> None:
        """Issue a put, and after it `value` to the signal at the address `signal` of `peer`."""
        self._bindings.putmem_signal_on_stream(
            target, source, size_bytes, signal, value, self._set, peer, stream.ptr
        )

    def wait(self, signal: int, value: int, stream: Any) -> None:
        """Let `stream` go on when the signal here has reached `value`."""
        self._bindings.signal_wait_until_on_stream(signal, self._reached, value, stream.ptr)

    def barrier(self, stream: Any) -> None:
        """Let `stream` go on when those of all ranks are here, and all they put has arrived."""
        self._bindings.barrier_all_on_stream(stream.ptr)

    def load(self, cp: Any, source: str, names: Sequence[str]) -> list[Any]:
        """Compile kernels that call NVSHMEM themselves, and link them with its device library.

        Parameters
        ----------
        cp
            CuPy.
        source
            CUDA C++ that includes ``device/nvshmem_defines.h``.
        names
            Of the kernels that are returned, declared ``extern "C"``.

        Raises
        ------
        MissingError
            Headers of CUDA are missing.
        ProgramError
            NVSHMEM refuses the kernels.
        """
        module = cp.cuda.function.Module()
        module.load(link(self._core, source, cp.cuda.Device().compute_capability))
        status = self._bindings.cumodule_init(module.ptr)  # tells it where the heaps are
        if status:
            raise ProgramError(f"NVSHMEM cannot be used by the kernels (status {status}).")
        self._modules.append(module)
        return [module.get_function(name) for name in names]

    def close(self) -> None:
        """Free the arrays and end NVSHMEM, with all ranks."""
        for module in self._modules:
            self._bindings.cumodule_finalize(module.ptr)
        self._modules.clear()
        for array in self._arrays:
            self._core.free_array(array)
        self._arrays.clear()
        self._core.finalize()


def import_nvshmem() -> tuple[Any, Any]:
    """Return the modules ``nvshmem.core`` and ``nvshmem.bindings``.

    Raises
    ------
    MissingError
        They, or the library that they load, are missing.
    """
    try:
        from nvshmem import bindings, core
    except ImportError as error:
        raise MissingError(f"NVSHMEM cannot be imported ({error}): {INSTALL_HINT}.") from error
    try:
        core.get_version()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingError(
            f"the library of NVSHMEM is missing ({reason}): {INSTALL_HINT}."
        ) from error
    return core, bindings


def link(core: Any, source: str, capability: str) -> bytes:
    """Return the machine code of kernels and of what they use of NVSHMEM's device library.

    `capability` is the GPU's, such as ``90``. No GPU is needed.

    Raises
    ------
    MissingError
        Headers of CUDA or NVSHMEM are missing.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode, Program, ProgramOptions
    from cuda.pathfinder import find_nvidia_header_directory

    folders = {name: find_nvidia_header_directory(name) for name in ("nvshmem", "cudart", "cccl")}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing:
        raise MissingError(f"the headers of {', '.join(missing)} are missing: {INSTALL_HINT}.")
    options = ProgramOptions(
        arch=f"sm_{capability}",
        std="c++17",
        relocatable_device_code=True,
        device_as_default_execution_space=True,  # a few of NVSHMEM's functions say nothing
        include_path=list(folders.values()),
    )
    compiled = Program(source, "c++", options).compile("cubin")
    library = core.find_device_bitcode_library(language=core.DeviceLibLanguage.STATIC)
    linker = Linker(
        compiled, ObjectCode.from_library(library), options=LinkerOptions(arch=f"sm_{capability}")
    )
    return bytes(linker.link("cubin").code)


def heap_limit_bytes(ranks: Ranks) -> int:
    """Return what arrays may take of the heap on every rank, as the user's environment sets it.

    Where it does not, the heap is as large as the benchmark asks for, and nothing limits it here.

    Raises
    ------
    UsageError
        NVSHMEM_SYMMETRIC_SIZE is no size.
    """
    text = os.environ.get(_HEAP_VARIABLE, "")
    match = _HEAP_SIZE.match(text)
    limit_bytes = sys.maxsize
    if match is not None:
        unit = 1 << 10 * " kmgt".index(match[2].lower() or " ")
        limit_bytes = max(0, math.ceil(float(match[1]) * unit) - _HEAP_SPARE_BYTES)
    refused = ranks.gather(bool(text) and match is None)
    if any(refused):
        raise UsageError(
            f"{_HEAP_VARIABLE} of rank {refused.index(True)} is no size: write it like 4G, or "
            "unset it."
        )
    return min(ranks.gather(limit_bytes))


@contextmanager
def open_heap(ranks: Ranks, size_bytes: int) -> Iterator[Heap]:
    """Start NVSHMEM on all ranks, each with its own GPU; end it after the block.

    Rank 0 makes the id that they meet under, and MPI carries it to the others. `size_bytes` is
    what all arrays of the block take together, alike on all ranks.

    Raises
    ------
    MissingError
        nvshmem4py or the library is missing.
    UsageError
        Ranks share a GPU, or the user's environment sets a smaller heap.
    ProgramError
        NVSHMEM failed in the block.
    """
    import numpy as np

    core, bindings = import_nvshmem()
    refuse_shared_gpus("NVSHMEM", ranks.gather(ranks.place))
    whole_bytes = size_bytes + _HEAP_SPARE_BYTES
    if heap_limit_bytes(ranks) < size_bytes:
        raise UsageError(
            f"the heap that {_HEAP_VARIABLE} sets is too small: set it to {whole_bytes} or more, "
            "unset it, or ask for smaller sizes."
        )
    from cuda.core import Device

    # The heap does not grow everywhere.
    os.environ[_HEAP_VARIABLE] = os.environ.get(_HEAP_VARIABLE) or str(whole_bytes)
    device = Device(ranks.session.device)
    device.set_current()
    identity = core.get_unique_id(empty=ranks.rank != 0)
    try:
        ranks.comm.Bcast(identity._data.view(np.int8))
        core.init(
            device=device,
            uid=identity,
            rank=ranks.rank,
            nranks=ranks.size,
            initializer_method="uid",
        )
        heap = Heap(core, bindings, size_bytes)
        yield heap
        ranks.barrier()
        heap.close()
    except (core.NvshmemError, core.NvshmemInvalid, bindings.NVSHMEMError) as error:
        raise ProgramError(f"NVSHMEM failed: {str(error).strip().splitlines()[0]}.") from error
