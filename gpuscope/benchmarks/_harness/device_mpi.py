"""Whether the MPI at hand takes buffers on the GPU: tried in two processes of its own, never asked.

An MPI that cannot does not refuse a device buffer, it crashes, hangs or delivers rubbish, and what
MPI libraries say of themselves is at times wrong. So before a benchmark hands them one, a child
mpirun does, on two ranks (:func:`main`), which say one word when all that was sent has arrived.
Anything else, a crash too, means no.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness.gpu import import_cupy
from gpuscope.benchmarks._harness.ranks import Ranks
from gpuscope.errors import GpuscopeError, MissingError
from gpuscope.recording import process
from gpuscope.units import printable

SENDRECV = "Sendrecv"
ALLREDUCE = "Allreduce"
ARRIVED = "gpuscope: all of it arrived"
"""What each of the two ranks says when the data is right."""
TIMEOUT_S = 60.0
"""Two processes that make a context and exchange a few MB take some seconds."""
GRACE_S = 3.0
"""Time a probe that hangs gets to end by itself."""
RANKS = 2
WAYS = (
    "an Open MPI built --with-cuda, Intel MPI (impi-rt) with I_MPI_OFFLOAD=1, or for messages a "
    "UCX with CUDA (libucx-cu13) under Open MPI: see MPI in docs/install.md"
)
"""How to get an MPI that takes device buffers."""
_ELEMENTS = (1, 512, 1 << 19)
"""Doubles a message: MPIs send short, middle and long ones (8 B, 4 KiB, 4 MiB) in other ways."""
_LAUNCHERS = ("mpirun", "mpiexec")
_FIRST_LINES = 3
"""Lines of a failed probe that are repeated: the first name the signal, later ones the stack."""
_PREFIX = "probe: "
"""Before what a rank of the probe says of its failure."""
_OF_A_LAUNCHER = re.compile(
    "OMPI_(?!MCA_|ALLOW_RUN_AS_ROOT)|OMPI_MCA_(ess|orte_|pmix|initial_wdir|shmem_RUNTIME)"
    "|PMIX_|PMI_|PRTE_|HYDRA_|HYDI_|MPI_LOCAL|MPIR_CVAR_CH3|SLURM_(PROCID|STEP_|LOCALID)"
)
"""Variables by which a process knows that it is a rank; a child mpirun must not see them."""
_ALLOWED = MappingProxyType(
    {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
)
"""What the user has allowed the mpirun of this rank, by options that a child does not see."""
_SOON = MappingProxyType({"OMPI_MCA_odls_base_sigkill_timeout": "1"})
"""A probe that failed leaves nothing that mpirun should wait for: it would do so twice."""
_CODE_AFTER_SIGNAL = 128
_CHILD = f"import sys; from {__name__} import main; main(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a probe."""

    works: bool
    reason: str
    """In words, to stand in brackets."""


def environment_outside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment less what a launcher tells its ranks; the user's settings stay."""
    return {name: value for name, value in environment.items() if not _OF_A_LAUNCHER.match(name)}


def probe(
    operation: str,
    *,
    environment: Mapping[str, str] = os.environ,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """Have two processes of a child mpirun do `operation` with device buffers.

    Where there is no mpirun (or mpiexec) to try it with, the answer is no.
    """
    outside = environment_outside(environment)
    path = outside.get("PATH")
    launcher = next(
        (found for name in _LAUNCHERS if (found := shutil.which(name, path=path))), None
    )
    if launcher is None:
        return Answer(False, "there is no mpirun on the PATH to try it with")
    arrived = 0
    said: list[str] = []

    def hear(line: process.Line) -> None:
        nonlocal arrived
        arrived += line.text.count(ARRIVED)  # mpirun may put both into one line
        if ARRIVED not in line.text and re.search(r"\w", line.text):
            said.append(line.text.strip())

    ended = process.run(
        [launcher, "-n", str(RANKS), sys.executable, "-c", _CHILD, operation],
        on_line=hear,
        env={**outside, **_ALLOWED, **_SOON},
        quiet_input=True,
        timeout_s=timeout_s,
        grace_s=GRACE_S,
    )
    return judge(ended, arrived, said, timeout_s)


def judge(ended: process.Ended, arrived: int, said: Sequence[str], timeout_s: float) -> Answer:
    """Say what the end of a probe means: only both ranks' word and a good end are a yes."""
    if ended.timed_out:
        return Answer(False, f"the probe gave no answer within {timeout_s:g} s")
    if ended.code == 0 and arrived == RANKS:
        return Answer(True, "the probe's data arrived")
    own = [line for line in said if line.startswith(_PREFIX)]
    words = printable(" | ".join((own or said)[:_FIRST_LINES]), 200) or "nothing"
    how = "crashed" if ended.code > _CODE_AFTER_SIGNAL else "failed"
    return Answer(False, f"the probe {how} with exit code {ended.code}; it said: {words}")


def require(ranks: Ranks, operation: str, instead: str) -> None:
    """Refuse on all ranks if the MPI does not take device buffers; `instead` is a path that works.

    Raises
    ------
    MissingError
        It does not.
    """
    answer = ranks.agree(probe(operation) if ranks.rank == 0 else None)
    assert answer is not None  # rank 0's
    if not answer.works:
        raise MissingError(
            f"this MPI cannot send device buffers ({answer.reason}): use `--path {instead}`, or "
            f"get an MPI that can: {WAYS}."
        )


def main(operation: str) -> None:
    """Do the part of one of the two ranks, and say the word if all is right."""
    from mpi4py import MPI

    try:
        wrong = _exchange(operation, MPI.COMM_WORLD)
    except (GpuscopeError, MPI.Exception) as error:
        wrong = str(error)
    if wrong:
        print(f"{_PREFIX}{wrong}", flush=True)
        os._exit(1)  # MPI_Finalize would wait for the other rank
    print(ARRIVED, flush=True)


def _exchange(operation: str, world: Any) -> str | None:
    """Do `operation` with device buffers of all sizes; return what went wrong."""
    if world.Get_size() != RANKS:
        return "its processes do not find each other: the mpirun on the PATH is another MPI's"
    cp = import_cupy()
    rank, other = world.Get_rank(), 1 - world.Get_rank()
    cp.cuda.Device(rank % cp.cuda.runtime.getDeviceCount()).use()
    for elements in _ELEMENTS:
        sent, received = cp.full(elements, rank + 1.0), cp.zeros(elements)
        cp.cuda.runtime.deviceSynchronize()  # MPI knows nothing of streams
        if operation == SENDRECV:
            world.Sendrecv(sent, other, recvbuf=received, source=other)
            expected = other + 1.0
        else:
            world.Allreduce(sent, received)
            expected = 3.0
        if not bool((received == expected).all()):
            return f"{operation} of {elements} doubles left wrong data"
    return None
