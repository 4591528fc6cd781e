"""ResNet-18 with the CIFAR stem in PyTorch, eager, alone or under DDP on gloo: prints one JSON line.

    python3 torch_images.py RANKS STEPS ROWS [channels-first|channels-last]

The model is torchvision's, as the test's peer has it. Each rank has one thread, ROWS images of 3 x 32 x 32 that are
there before the time is taken, and AdamW in its fused form. Batch norm is each rank's own: torch's SyncBatchNorm
does not run on the CPU.
"""
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "e2e"))
from torch_images import ResNet  # noqa: E402

CLASSES, SIZE = 10, 32


def pss_mib():
    return next(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Pss:")) >> 10


def run(rank, ranks, steps, rows, pixels):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    memory = torch.channels_last if pixels == "channels-last" else torch.contiguous_format
    model = ResNet(18, CLASSES, 3, "cifar").to(memory_format=memory)
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(rows, 3, SIZE, SIZE, generator=generator).contiguous(memory_format=memory),
                torch.randint(0, CLASSES, (rows,), generator=generator)) for _ in range(steps)]
    times = []
    for images, labels in batches:
        if ranks > 1:
            dist.barrier()
        begin = time.perf_counter()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    if rank == 0:
        seconds = statistics.median(times[steps // 4:])
        print(json.dumps({"peer": "torch " + torch.__version__, "ranks": ranks, "step_ms": seconds * 1e3,
                          "images_per_s": rows * ranks / seconds, "pss_mib": pss_mib()}), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    ranks, steps, rows = map(int, sys.argv[1:4])
    pixels = sys.argv[4] if len(sys.argv) > 4 else "channels-first"
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(20000 + os.getpid() % 20000)
    if ranks == 1:
        run(0, ranks, steps, rows, pixels)
    else:
        mp.spawn(run, args=(ranks, steps, rows, pixels), nprocs=ranks)
