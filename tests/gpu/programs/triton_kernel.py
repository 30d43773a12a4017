"""A Triton kernel in a pipeline of copies; its first launch compiles it."""

from __future__ import annotations

import nvtx
import torch
import triton
import triton.language as tl

CHUNKS, COUNT = 8, 8 << 20


@triton.jit  # type: ignore[untyped-decorator]
def scale(pointer, count, steps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    value = tl.load(pointer + offsets, mask=inside)
    for _ in range(steps):
        value = value * 1.0001 + 0.5
    tl.store(pointer + offsets, value, mask=inside)


def main() -> None:
    hosts = [torch.randn(COUNT).pin_memory() for _ in range(CHUNKS)]
    buffers = [torch.empty(COUNT, device="cuda") for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in range(4)]

    def chunks(name: str) -> None:
        torch.cuda.synchronize()
        with nvtx.annotate(name):
            for chunk in range(CHUNKS):
                turn = chunk % len(streams)
                with torch.cuda.stream(streams[turn]):
                    buffers[turn].copy_(hosts[chunk], non_blocking=True)
                    scale[(COUNT // 1024,)](buffers[turn], COUNT, 600, BLOCK=1024)
                    hosts[chunk].copy_(buffers[turn], non_blocking=True)
            torch.cuda.synchronize()

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    chunks("compiling")
    chunks("triton")
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
