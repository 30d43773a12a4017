"""A pipeline as a CUDA graph: record with --cuda-graph-trace=graph, and its inside is unknown."""

from __future__ import annotations

import cupy as cp

from tests.gpu.programs._parts import MS, Gpu, phase, record

CHUNKS = 4


def main() -> None:
    gpu = Gpu(chunks=CHUNKS)
    stream = cp.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    for chunk in range(CHUNKS):
        gpu.copy_in(chunk, stream)
        gpu.kernel(stream, MS)
        gpu.copy_out(chunk, stream)
    graph = stream.end_capture()

    def replays() -> None:
        with phase("graph"):
            for _ in range(3):
                graph.launch(stream)

    record(replays)


if __name__ == "__main__":
    main()
