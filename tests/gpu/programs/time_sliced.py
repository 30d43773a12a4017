"""Two processes compute on one GPU at the same time, without MPS: they take turns."""

from __future__ import annotations

import multiprocessing

from tests.gpu.programs._parts import MS, Gpu, phase

KERNELS = 10


def work(barrier: object) -> None:
    import cupy as cp

    gpu = Gpu(size_bytes=1 << 20, chunks=1)
    stream = cp.cuda.Stream(non_blocking=True)
    gpu.kernel(stream, MS)
    stream.synchronize()
    barrier.wait()  # type: ignore[attr-defined]
    with phase("time_sliced"):
        for _ in range(KERNELS):
            gpu.kernel(stream, 2 * MS)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    both = [context.Process(target=work, args=(barrier,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()


if __name__ == "__main__":
    main()
