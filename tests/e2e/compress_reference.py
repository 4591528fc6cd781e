"""What two ranks train with compressed gradients, in PyTorch: torch's own powerSGD_hook, and 1-bit SGD
as Seide et al. (2014) describe it. Prints the mean loss of every step.

    compress_reference.py powersgd FACTORS.json STEPS RANK
    compress_reference.py onebit STEPS

The model, the samples and the optimizer are those of tests/ranks/compressed_reference_test.cpp. FACTORS.json
has the factors Q that PowerSGD begins with, by their number of rows: torch would draw its own.
"""

import json
import os
import socket
import sys
from datetime import timedelta

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the hook synchronizes any GPU that it finds, and fails for CPU tensors

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, ROWS, INPUTS, WIDE, OUTPUTS, RATE, ONEBIT_BLOCK = 2, 6, 20, 30, 10, 0.05, 4096


def wave(shape, by, begin):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * by + begin).view(shape)


def batch(rank, step):
    x = wave((ROWS, INPUTS), 0.37, rank + 0.3 * step)
    return x, torch.tanh(x[:, :OUTPUTS] * 1.5)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(INPUTS, WIDE, dtype=torch.float64)
        self.down = torch.nn.Linear(WIDE, OUTPUTS, dtype=torch.float64)
        with torch.no_grad():
            for number, one in enumerate(self.parameters()):
                one.copy_(wave(one.shape, 1.1, number) / 4)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def run_powersgd(rank, factors, steps, columns):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    given = {int(rows): torch.tensor(q, dtype=torch.float64) for rows, q in json.load(open(factors)).items()}
    # The hook draws the first Q by torch.randn(1, m, r): gives it ours. It makes them orthogonal, which changes
    # neither the span of P nor anything that follows from it.
    randn, torch.randn = torch.randn, lambda *shape, **how: given[shape[1]].view(shape)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    # Two plain steps are the least that torch allows: DDP lays out its buckets anew after the first.
    state = hook.PowerSGDState(process_group=None, matrix_approximation_rank=columns, start_powerSGD_iter=2,
                               min_compression_rate=1, use_error_feedback=True, warm_start=True)
    model.register_comm_hook(state, hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step in range(1, steps + 1):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).sum() / ROWS
        loss.backward()  # DDP's mean over ranks: the mean over all rows
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(repr(total.item() / RANKS), flush=True)
    torch.randn = randn
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may still run when Python ends, and would end it by SIGABRT


def onebit(x):
    """Sign, and the mean of each side, for every ONEBIT_BLOCK elements."""
    said = torch.empty_like(x)
    for begin in range(0, x.numel(), ONEBIT_BLOCK):
        block = x[begin:begin + ONEBIT_BLOCK]
        below = block < 0
        values = said[begin:begin + ONEBIT_BLOCK]
        for side in (below, ~below):
            if side.any():
                values[side] = block[side].mean()
    return said


def run_onebit(steps):
    """One weight, tanh(x W^T). Slice r of the gradient is summed by rank r, which quantizes the sum once more
    and adds what that loses to its own residual."""
    torch.set_num_threads(1)
    weight = (wave((OUTPUTS, INPUTS), 1.1, 0) / 4).requires_grad_()
    residuals = [torch.zeros(weight.numel(), dtype=torch.float64) for _ in range(RANKS)]
    half = weight.numel() // RANKS
    slices = [slice(r * half, (r + 1) * half) for r in range(RANKS)]
    optimizer = torch.optim.SGD([weight], lr=RATE, momentum=0.9)
    for step in range(1, steps + 1):
        losses, sent = [], []
        for rank in range(RANKS):
            x, y = batch(rank, step)
            loss = (torch.tanh(x @ weight.t()) - y).pow(2).sum()
            losses.append(loss.item())
            gradient = torch.autograd.grad(loss, weight)[0].view(-1)
            wanted = gradient + residuals[rank]
            said = torch.cat([onebit(wanted[one]) for one in slices])
            residuals[rank] = wanted - said
            sent.append(said)
        back = []
        for owner, one in enumerate(slices):
            total = sum(said[one] for said in sent)
            back.append(onebit(total))
            residuals[owner][one] += total - back[-1]
        weight.grad = torch.cat(back).view(weight.shape) / (RANKS * ROWS)
        optimizer.step()
        print(repr(sum(losses) / (RANKS * ROWS)), flush=True)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    if sys.argv[1] == "onebit":
        run_onebit(int(sys.argv[2]))
    else:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(free_port())
        mp.spawn(run_powersgd, args=(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), nprocs=RANKS)
