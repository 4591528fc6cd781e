"""A GPT in PyTorch, eager, alone or tensor parallel (DTensor) on gloo, one thread per rank: prints one JSON line.

    python3 torch_tensor.py RANKS STEPS ROWS SEQ HIDDEN LAYERS HEADS VOCAB

The cut is the fastest that we found with parallelize_module. The median step in ms of each variant against the chosen one, in
the same process, 2 ranks on 2 cores, rows 4, seq 128, hidden 256, layers 4, heads 4, vocab 4096 (one rank: 188):

    chosen: one qkv Linear, token table on every rank, head cut with loss_parallel, fused AdamW
    three Linears q, k and v: the gradients of their one input are summed one by one          223 against 183
    the same, the input made a DTensor once (PrepareModuleInput)                              197 against 183
    token table cut by vocabulary (RowwiseParallel)                                           203 against 195
    head cut, logits gathered (with 2 layers and vocab 16384: 311 against 224)                191 against 180
    head on every rank                                                                        197 against 180
    sequence parallel norms and vocabulary cut (more calls; norms summed in the update)       254 against 186
    foreach AdamW                                                                             198 against 183

The same cut written by hand over dist.all_reduce, without DTensor, took 156 against 193 (separate processes).
"""
import contextlib
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.head_dim = hidden // heads
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        """The rows of qkv go head by head: q, k, v of the first, then of the next. So a cut leaves heads whole."""
        rows, seq, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(rows, seq, -1, 3, self.head_dim).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, seq, -1))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, seq, hidden, layers, heads, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.Sequential(*[Block(hidden, heads) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids):
        return self.head(self.ln(self.blocks(self.tok(ids) + self.pos(torch.arange(ids.shape[1])))))


def parallelize(model, ranks):
    plan = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    for name in ("qkv", "up"):
        plan[f"blocks.*.{name}"] = ColwiseParallel()
    for name in ("proj", "down"):
        plan[f"blocks.*.{name}"] = RowwiseParallel()
    return parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)


def make_optimizer(model):
    """Fused AdamW takes a group of DTensors or a group of plain tensors, not a mixture."""
    cut = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    return torch.optim.AdamW([{"params": group} for group in (cut, whole) if group], lr=1e-3, fused=True)


def pss_mib():
    return next(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Pss:")) >> 10


def run(rank, ranks, steps, rows, seq, hidden, layers, heads, vocab):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(seq, hidden, layers, heads, vocab)
    loss_context = contextlib.nullcontext
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        model = parallelize(model, ranks)
        loss_context = loss_parallel
    optimizer = make_optimizer(model)
    batches = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step)
        batches.append(torch.randint(0, vocab, (rows, seq + 1), generator=generator))
    times = []
    for ids in batches:
        if ranks > 1:
            dist.barrier()
        begin = time.perf_counter()
        with loss_context():
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    loss = loss.full_tensor() if ranks > 1 else loss
    if rank == 0:
        seconds = statistics.median(times[steps // 4:])
        print(json.dumps({"peer": "torch " + torch.__version__, "ranks": ranks, "step_ms": seconds * 1e3,
                          "tokens_per_s": rows * seq / seconds, "pss_mib": pss_mib(), "loss": loss.item()}),
              flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    ranks, *shape = map(int, sys.argv[1:])
    heads, vocab = shape[-2:]
    if heads % ranks or vocab % ranks:
        sys.exit(f"torch_tensor.py: {ranks} ranks must divide {heads} heads and a vocabulary of {vocab}")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(20000 + os.getpid() % 20000)
    if ranks == 1:
        run(0, ranks, *shape)
    else:
        mp.spawn(run, args=(ranks, *shape), nprocs=ranks)
