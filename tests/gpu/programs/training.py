"""A PyTorch training loop: a stream of its own copies the next batch while this one is learnt.

`first_steps` runs kernels that were never launched before; `item_every_step` reads the loss each
step, which the `training` loop does every tenth; in `no_prefetch` the batch is copied by the stream
that computes.
"""

from __future__ import annotations

import nvtx
import torch

STEPS = 5
BATCH, WIDTH = 8192, 2048


def main() -> None:
    device = torch.device("cuda")
    batches = [torch.randn(BATCH, WIDTH).pin_memory() for _ in range(4)]
    copying = torch.cuda.Stream()
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def learn(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def prefetched(step: int) -> torch.Tensor:
        with torch.cuda.stream(copying):
            return batches[step % len(batches)].to(device, non_blocking=True)

    def loop(name: str, *, prefetch: bool, read_every: int) -> None:
        torch.cuda.synchronize()
        with nvtx.annotate(name):
            ahead = prefetched(0) if prefetch else None
            for step in range(STEPS):
                if ahead is not None:
                    torch.cuda.current_stream().wait_stream(copying)
                    batch, ahead = ahead, prefetched(step + 1)
                    batch.record_stream(torch.cuda.current_stream())
                else:
                    batch = batches[step % len(batches)].to(device, non_blocking=True)
                loss = learn(batch)
                if (step + 1) % read_every == 0:
                    loss.item()
            torch.cuda.synchronize()

    def everything() -> None:
        loop("training", prefetch=True, read_every=STEPS)
        loop("item_every_step", prefetch=True, read_every=1)
        loop("no_prefetch", prefetch=False, read_every=STEPS)

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    loop("first_steps", prefetch=True, read_every=STEPS)
    everything()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
