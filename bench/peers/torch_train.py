"""The GPT of configs/bench.toml in PyTorch, eager, alone or on gloo under DDP or FSDP2: prints one JSON line.

    python3 torch_train.py RANKS STEPS ROWS SEQ [ddp|fsdp]
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

DIM, HEADS, LAYERS, VOCAB = 256, 4, 4, 4096


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        rows, seq, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(rows, seq, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, seq, DIM))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, seq):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(seq, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        return self.head(self.ln(self.blocks(self.tok(ids) + self.pos(torch.arange(ids.shape[1])))))


def pss_mib():
    return next(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Pss:")) >> 10


def run(rank, ranks, steps, rows, seq, mode):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(seq)
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        if mode == "fsdp":
            from torch.distributed.fsdp import fully_shard
            for unit in [*model.blocks, model]:
                fully_shard(unit)
        else:
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        batches.append(torch.randint(0, VOCAB, (rows, seq + 1), generator=generator))
    times = []
    for ids in batches:
        if ranks > 1:
            dist.barrier()
        begin = time.perf_counter()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    if rank == 0:
        seconds = statistics.median(times[steps // 4:])
        print(json.dumps({"peer": "torch " + torch.__version__, "ranks": ranks, "step_ms": seconds * 1e3,
                          "tokens_per_s": rows * ranks * seq / seconds, "pss_mib": pss_mib()}), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    ranks, steps, rows, seq = map(int, sys.argv[1:5])
    mode = sys.argv[5] if len(sys.argv) > 5 else "ddp"
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(20000 + os.getpid() % 20000)
    if ranks == 1:
        run(0, ranks, steps, rows, seq, mode)
    else:
        mp.spawn(run, args=(ranks, steps, rows, seq, mode), nprocs=ranks)
