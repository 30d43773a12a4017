"""A rank of an MPI program whose ranges and MPI calls, in this order, a recording must show.

mpirun -n 2 nsys profile -t nvtx,mpi --mpi-impl=openmpi python ranks.py
"""

from __future__ import annotations

import threading
from array import array

import nvtx
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
sent, received, halo = array("d", [rank] * 1000), array("d", bytes(8000)), array("d", bytes(4000))
ones, total = array("d", [1.0] * 100), array("d", bytes(800))


def work_beside() -> None:
    with nvtx.annotate("beside"):
        nvtx.end_range(across_threads)


across_threads = nvtx.start_range("across threads", domain="app")
with nvtx.annotate("step", domain="app"):
    with nvtx.annotate("exchange", domain="app"):
        world.Sendrecv(sent, right, recvbuf=received, source=left)
    with nvtx.annotate("halo", domain="app"):
        requests = [world.Irecv(halo, left, tag=7), world.Isend(sent[:500], right, tag=7)]
        MPI.Request.Waitall(requests)
    with nvtx.annotate("sum"):
        world.Allreduce(ones, total)
    world.Barrier()
thread = threading.Thread(target=work_beside)
thread.start()
thread.join()
assert received[0] == halo[0] == left
assert total[0] == size
