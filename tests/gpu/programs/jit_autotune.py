"""Kernels that are compiled in the middle of a pipeline, as a tuner does before it settles."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 6


def main() -> None:
    os.environ["CUPY_CACHE_DIR"] = tempfile.mkdtemp()  # nothing compiled before is found
    gpu = Gpu()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    variants: list[Any] = []

    def chunks(compile_first: bool) -> None:
        for chunk in range(CHUNKS):
            stream = streams[chunk % len(streams)]
            if compile_first:
                name = f"variant_{len(variants)}"
                gpu.kernels[name] = gpu.compile(name)
                variants.append(name)
            gpu.copy_in(chunk, stream)
            gpu.kernel(stream, MS, name=variants[chunk])
            gpu.copy_out(chunk, stream)

    def tuning() -> None:
        with phase("tuning"):
            chunks(True)

    def tuned() -> None:
        with phase("repaired"):
            chunks(False)

    record(tuning, tuned, warm=False)


if __name__ == "__main__":
    main()
