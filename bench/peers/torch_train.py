"""The GPT of configs/bench.toml, or a Llama of the same size, in PyTorch, eager, alone or on gloo (DDP, FSDP2,
pipelining): prints one JSON line.

    python3 torch_train.py RANKS STEPS ROWS SEQ [ddp|fsdp|powersgd|llama]
    python3 torch_train.py RANKS STEPS ROWS SEQ pipeline [MICROS [CUT]]

A pipeline runs Schedule1F1B over the RANKS x ROWS rows in MICROS (8) micro-batches. CUT is the number of the six
modules (embedding, 4 blocks, head) in each stage, as in 4,2; without it all stages have the same number, and the last the rest.
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
LLAMA_FFN = 688  # three matrices with about as many weights as the two of the GPT


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


class LlamaBlock(nn.Module):
    def __init__(self, seq):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.gate_up, self.down = nn.Linear(DIM, 2 * LLAMA_FFN, bias=False), nn.Linear(LLAMA_FFN, DIM, bias=False)
        head = DIM // HEADS
        angles = torch.outer(torch.arange(seq), 10000.0 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def rotated(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cosines + torch.cat((-second, first), -1) * self.sines

    def forward(self, x):
        rows, seq, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, seq, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, seq, DIM))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Embed(nn.Module):
    def __init__(self, seq):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(seq, DIM)

    def forward(self, ids):
        return self.tok(ids) + self.pos(torch.arange(ids.shape[1]))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x):
        return self.out(self.ln(x))


class LlamaHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.RMSNorm(DIM, eps=1e-5), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))


def llama(seq):
    return nn.Sequential(nn.Embedding(VOCAB, DIM), *[LlamaBlock(seq) for _ in range(LAYERS)], LlamaHead())


def gpt(seq):
    return nn.Sequential(Embed(seq), *[Block() for _ in range(LAYERS)], Head())


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_stage(model, rank, micros, cut):
    """This rank's part of the model, and what runs forward and backward of a batch through all of them."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    stage = model[sum(cut[:rank]):sum(cut[:rank + 1])]
    # The mean over micro-batches is taken in the loss, so that no pass over the gradients is needed for it.
    schedule = Schedule1F1B(PipelineStage(stage, rank, len(cut), torch.device("cpu")), micros, scale_grads=False,
                            loss_fn=lambda logits, targets: loss_of(logits, targets) / micros)

    def forward_backward(ids):
        inputs = [ids[:, :-1]] if rank == 0 else []
        schedule.step(*inputs, target=ids[:, 1:] if rank == len(cut) - 1 else None, return_outputs=False)

    return stage, forward_backward


def pss_mib():
    return next(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Pss:")) >> 10


def run(rank, ranks, steps, rows, seq, mode, micros, cut):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = llama(seq) if mode == "llama" else gpt(seq)

    def forward_backward(ids):
        loss_of(model(ids[:, :-1]), ids[:, 1:]).backward()

    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        if mode == "pipeline":
            model, forward_backward = make_stage(model, rank, micros, cut)
        elif mode == "fsdp":
            from torch.distributed.fsdp import fully_shard
            for unit in [*model[1:-1], model]:
                fully_shard(unit)
        else:
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            if mode == "powersgd":
                from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
                state = power_sgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
                model.register_comm_hook(state, power_sgd.powerSGD_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def rows_of(step, of_rank):
        generator = torch.Generator().manual_seed(1000 * step + of_rank)
        return torch.randint(0, VOCAB, (rows, seq + 1), generator=generator)

    sources = range(ranks) if mode == "pipeline" else [rank]
    batches = [torch.cat([rows_of(step, source) for source in sources]) for step in range(steps)]
    times = []
    for ids in batches:
        if ranks > 1:
            dist.barrier()
        begin = time.perf_counter()
        forward_backward(ids)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    if mode == "pipeline":  # the last stage is done before the first: a step takes as long as its slowest rank
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times = slowest.tolist()
    if rank == (ranks - 1 if mode == "pipeline" else 0):
        seconds = statistics.median(times[steps // 4:])
        print(json.dumps({"peer": "torch " + torch.__version__, "ranks": ranks, "step_ms": seconds * 1e3,
                          "tokens_per_s": rows * ranks * seq / seconds, "pss_mib": pss_mib()}), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def dealt(modules, ranks):
    each = -(-modules // ranks)
    return [max(0, min(each, modules - rank * each)) for rank in range(ranks)]


if __name__ == "__main__":
    ranks, steps, rows, seq = map(int, sys.argv[1:5])
    mode = sys.argv[5] if len(sys.argv) > 5 else "ddp"
    micros = int(sys.argv[6]) if len(sys.argv) > 6 else 8
    cut = [int(n) for n in sys.argv[7].split(",")] if len(sys.argv) > 7 else dealt(LAYERS + 2, ranks)
    if mode == "pipeline" and (ranks == 1 or len(cut) != ranks or sum(cut) != LAYERS + 2 or min(cut) < 1):
        sys.exit(f"pipeline: {LAYERS + 2} modules cannot be cut as {cut} for {ranks} ranks (2 at least)")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(20000 + os.getpid() % 20000)
    if ranks == 1:
        run(0, ranks, steps, rows, seq, mode, micros, cut)
    else:
        mp.spawn(run, args=(ranks, steps, rows, seq, mode, micros, cut), nprocs=ranks)
