"""Benchmarks that run as MPI ranks, a GPU to each.

mpirun starts a process a rank; each takes the GPU that its place on the host names, and measures
with the others: they start a pass together, and the slowest counts. ::

    rank 0    barrier | issue, open gate … wait |           longest time of both
    rank 1    barrier | issue, open gate ……… wait |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from gpuscope.benchmarks._harness.gpu import (
    Session,
    StartGate,
    Team,
    import_cupy,
    open_session,
)
from gpuscope.errors import MissingError, ProgramError, UsageError
from gpuscope.units import counted

_T = TypeVar("_T")
_PAGE = 4096
_PORTABLE = 1
"""cudaHostRegisterPortable."""


_FAILED: list[Ranks] = []
"""Whose block ended by an error. They are kept until :func:`leave`: a communicator of NCCL that is
destroyed waits for its kernels, and for the other ranks, which do not know of the error."""


class Ranks(Team):
    """All ranks of the run, seen from one of them; made by :func:`open_ranks`.

    ``comm`` is the mpi4py communicator of all ranks, ``session`` measures on this rank's GPU.
    """

    session: Session

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.mpi = mpi
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._here = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank: int = self._here.Get_rank()
        self.local_size: int = self._here.Get_size()
        self._communicators: list[Any] = []
        """Of NCCL; see :data:`_FAILED`."""

    @property
    def place(self) -> tuple[str, str]:
        """The host, and the PCI bus id of the GPU."""
        return self.mpi.Get_processor_name(), self.session.pci_bus_id

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.comm.Barrier()

    def gather(self, value: _T) -> list[_T]:
        """Return the value of each rank, in their order, to all of them."""
        found: list[_T] = self.comm.allgather(value)
        return found

    def agree(self, value: _T) -> _T:
        """Return rank 0's value on every rank, so that all do the same work."""
        agreed: _T = self.comm.bcast(value)
        return agreed

    def nccl(self, comm: Any = None) -> Any:
        """Return a ``cupy.cuda.nccl.NcclCommunicator`` of the ranks in `comm`, by default of all.

        Rank 0 makes the id that NCCL meets under, and MPI carries it to the others.

        Raises
        ------
        MissingError
            CuPy has no NCCL here.
        UsageError
            Ranks share a GPU.
        """
        from cupy.cuda import nccl

        if not nccl.available:
            raise MissingError(
                "CuPy finds no NCCL: `pip install nvidia-nccl-cu13` (or cu12) brings it."
            )
        comm = self.comm if comm is None else comm
        refuse_shared_gpus("NCCL", comm.allgather(self.place))
        identity = comm.bcast(nccl.get_unique_id() if comm.Get_rank() == 0 else None)
        made = nccl.NcclCommunicator(comm.Get_size(), identity, comm.Get_rank())
        self._communicators.append(made)
        return made

    def gate(self, cp: Any, own: StartGate) -> StartGate:
        """Return a gate that opens on all GPUs of this host at once, if CUDA can see its flag.

        With gates of their own, ranks start a pass apart by as much as one of their threads is
        held up between the barrier and the opening: now and then by milliseconds.
        """
        import numpy as np

        leads = self.local_rank == 0
        self._window = self.mpi.Win.Allocate_shared(_PAGE if leads else 0, 1, comm=self._here)
        memory, _ = self._window.Shared_query(0)
        flag = np.frombuffer(memory, np.uint32, 1)
        if leads:
            flag[0] = 0
        try:
            cp.cuda.runtime.hostRegister(flag.ctypes.data, _PAGE, _PORTABLE)
            visible = True
        except cp.cuda.runtime.CUDARuntimeError:
            visible = False
        return StartGate(cp, flag, opens=leads) if self.every(visible) else own

    def describe(self) -> dict[str, Any]:
        """Return the ranks, their hosts and GPUs, and the MPI."""
        lines = self.mpi.Get_library_version().splitlines()
        return {
            "ranks": self.size,
            "hosts": self.gather(self.mpi.Get_processor_name()),
            "gpus": self.gather(self.session.pci_bus_id),
            "mpi": lines[0].rstrip(", \0") if lines else None,
            "mpi_threads": thread_level(self.mpi),
            "nccl": nccl_version(),
        }


def nccl_version() -> str | None:
    """Return the version of the NCCL that CuPy calls; None where it has none."""
    from cupy.cuda import nccl

    if not nccl.available:
        return None
    number = nccl.get_version()
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def import_mpi() -> Any:
    """Return ``mpi4py.MPI``; importing it starts MPI.

    Raises
    ------
    MissingError
        mpi4py or an MPI library is missing.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingError(
            f"MPI cannot be used ({error}): `pip install 'gpuscope[mpi]'` brings mpi4py, "
            "`apt-get install openmpi-bin` an MPI."
        ) from error
    return MPI


def thread_level(mpi: Any) -> str:
    """Return what MPI allows threads to do, as the standard names it."""
    names = {
        mpi.THREAD_SINGLE: "single",
        mpi.THREAD_FUNNELED: "funneled",
        mpi.THREAD_SERIALIZED: "serialized",
        mpi.THREAD_MULTIPLE: "multiple",
    }
    return names[mpi.Query_thread()]


def check_places(
    benchmark: str, size: int, here: int, gpus: int, *, least: int, may_share: bool = True
) -> None:
    """Check that there are enough ranks, and not more on this host than it has GPUs.

    `here` are the ranks on this host, `gpus` its GPUs, which ranks may share if the user says so.

    Raises
    ------
    UsageError
        There are too few ranks, or too many.
    """
    if size < least:
        raise UsageError(
            f"{benchmark} needs {least} ranks at least, and there is {size}: "
            f"`gpuscope run --ranks {least} {benchmark}`."
        )
    if here > gpus:
        raise UsageError(
            f"{here} ranks, {counted(gpus, 'GPU')}: start {gpus}"
            + (
                ", or let them share with --oversubscribe (nothing is judged then)."
                if may_share
                else f"; {benchmark} wants a GPU for each."
            )
        )


def refuse_shared_gpus(library: str, places: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError where two ranks have one GPU; a library wants one for each of them."""
    if len(set(places)) < len(places):
        raise UsageError(f"{library} wants a GPU for each rank: leave --oversubscribe out.")


def _nccl_errors() -> tuple[type[Exception], ...]:
    """Return what CuPy raises when NCCL fails."""
    from cupy.cuda import nccl

    return (nccl.NcclError,) if nccl.available else ()


@contextmanager
def open_ranks(
    benchmark: str, *, least: int = 2, oversubscribe: bool | None = False
) -> Iterator[Ranks]:
    """Prepare this rank for measuring with the others, on a GPU of its own.

    Parameters
    ----------
    benchmark
        Its name.
    least
        Ranks that it needs.
    oversubscribe
        Ranks may share a GPU; None where they never can.

    Raises
    ------
    MissingError
        MPI, CuPy, nvtx, a driver or a GPU is missing.
    UsageError
        There are too few ranks, or more than GPUs.
    ProgramError
        CUDA or NCCL failed in the block, or MPI refuses calls from a process with several threads.
    """
    mpi = import_mpi()
    ranks = Ranks(mpi, mpi.COMM_WORLD)
    if mpi.Query_thread() < mpi.THREAD_FUNNELED:
        # The clocks are sampled from another thread, which calls no MPI.
        raise ProgramError(
            "this MPI was started for processes of one thread: unset MPI4PY_RC_THREADS and "
            "MPI4PY_RC_THREAD_LEVEL."
        )
    gpus = import_cupy().cuda.runtime.getDeviceCount()
    places = ranks.gather((ranks.local_size, gpus))
    for here, found in places:
        most = here if oversubscribe else found
        may_share = oversubscribe is not None
        check_places(benchmark, ranks.size, here, most, least=least, may_share=may_share)
    with open_session(benchmark, ranks.local_rank % gpus, ranks) as session:
        ranks.session = session
        try:
            yield ranks
        except BaseException as error:
            _FAILED.append(ranks)
            if isinstance(error, _nccl_errors()):
                raise ProgramError(f"NCCL failed: {error}.") from error
            raise


def leave(code: int) -> NoReturn:
    """End the process; one rank of several that failed does not wait for the others in MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if code and mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
