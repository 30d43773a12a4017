"""NCCL on one rank: messages of known sizes, in ranges of a named category, beside a kernel."""

from __future__ import annotations

import cupy as cp
import nvtx
from cupy.cuda import nccl

STEPS = 6


def main() -> None:
    """Exchange with oneself: an all-reduce, and a send and a receive in a group, of three sizes."""
    communicator = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    source = cp.ones(1 << 24, cp.float32)
    target = cp.empty_like(source)
    sending, computing = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    matrix = cp.ones((4096, 4096), cp.float32)
    product = matrix @ matrix
    cp.cuda.runtime.deviceSynchronize()
    for step in range(STEPS):
        with nvtx.annotate("exchange", category="training", domain="demo"):
            with computing:
                product = matrix @ matrix
            count = 1 << (18 + 2 * (step % 3))
            what = (count, nccl.NCCL_FLOAT32)
            communicator.allReduce(
                source.data.ptr, target.data.ptr, *what, nccl.NCCL_SUM, sending.ptr
            )
            nccl.groupStart()
            communicator.send(source.data.ptr, *what, 0, sending.ptr)
            communicator.recv(target.data.ptr, *what, 0, sending.ptr)
            nccl.groupEnd()
    cp.cuda.runtime.deviceSynchronize()
    assert product.shape == matrix.shape


if __name__ == "__main__":
    main()
