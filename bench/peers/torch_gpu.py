"""GPT-2 or Llama in PyTorch on one GPU, as one would write it for speed: prints one JSON line.

    python3 torch_gpu.py [eager|compile|graphs] [--kind gpt] [--rows 32] [--seq 1024] [--layers 12] [--hidden 768]
                         [--heads 12] [--ffn 0] [--vocab 50304] [--steps 150] [--warmup 20] [--micros 1] [--recompute] [--deterministic] [--device cuda]

bfloat16 by autocast over float32 weights, cuDNN or flash attention, fused AdamW, gradients set to none, no copy to the
host in a step. Tokens are random and lie on the GPU already. `graphs` is torch.compile's "reduce-overhead", which
replays CUDA graphs. A figure is the tokens of all --steps by the time of all of them, after the warm-up: what the card
sustains. Without a GPU, --device cpu shows that the program runs.
"""
import argparse
import contextlib
import json
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS only if it must be deterministic

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        rows, seq, hidden = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(rows, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, seq, hidden))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cosines, sines):
        rows, seq, hidden = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(rows, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        q, k = (rotated(part, cosines, sines) for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, seq, hidden))
        gate, up = self.up(self.ln_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotated(x, cosines, sines):
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class Model(nn.Module):
    """Token embedding, blocks, norm, head; the head of a GPT is the embedding."""

    def __init__(self, options):
        super().__init__()
        hidden, heads = options.hidden, options.heads
        self.recompute, llama = options.recompute, options.kind == "llama"
        self.tokens = nn.Embedding(options.vocab, hidden)
        places = torch.arange(options.seq)
        if llama:
            angles = torch.outer(places, 10000.0 ** (-torch.arange(0, hidden // heads, 2) / (hidden // heads)))
            angles = torch.cat((angles, angles), -1)
            self.register_buffer("cosines", angles.cos().bfloat16(), persistent=False)
            self.register_buffer("sines", angles.sin().bfloat16(), persistent=False)
            self.head = nn.Linear(hidden, options.vocab, bias=False).weight
        else:
            self.positions = nn.Embedding(options.seq, hidden)
            self.register_buffer("places", places, persistent=False)
            self.head = self.tokens.weight
        make = (lambda: LlamaBlock(hidden, heads, options.ffn)) if llama else (lambda: Block(hidden, heads))
        self.blocks = nn.ModuleList([make() for _ in range(options.layers)])
        self.ln = nn.RMSNorm(hidden, eps=1e-5) if llama else nn.LayerNorm(hidden)
        self.llama = llama
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):
        x, more = self.tokens(ids), (self.cosines, self.sines) if self.llama else ()
        if not self.llama:
            x = x + self.positions(self.places)
        for block in self.blocks:
            x = checkpoint(block, x, *more, use_reentrant=False) if self.recompute else block(x, *more)
        logits = F.linear(self.ln(x), self.head)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", default="compile", choices=["eager", "compile", "graphs"])
    parser.add_argument("--kind", default="gpt", choices=["gpt", "llama"])
    for name, default in (("rows", 32), ("seq", 1024), ("layers", 12), ("hidden", 768), ("heads", 12), ("ffn", 0),
                          ("vocab", 50304), ("steps", 150), ("warmup", 20), ("micros", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--recompute", action="store_true", help="keep only the input of every block")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def attention(options):
    """The fastest attention that may be used. cuDNN's backward is not deterministic, flash's can be."""
    if options.device == "cpu":
        return contextlib.nullcontext()
    if options.deterministic:
        return sdpa_kernel([SDPBackend.FLASH_ATTENTION])
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)


def main():
    options = arguments()
    on_gpu = options.device != "cpu"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    torch.manual_seed(0)
    if options.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    with torch.device(options.device):
        model = Model(options)
        batches = torch.randint(0, options.vocab, (8, options.micros, options.rows, options.seq + 1))
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), fused=True)
    modes = {"eager": lambda f: f, "compile": torch.compile, "graphs": lambda f: torch.compile(f, mode="reduce-overhead")}
    forward = modes[options.mode](model)

    def step(batch):
        for ids in batch:
            if options.mode == "graphs":
                torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast(options.device, dtype=torch.bfloat16):
                loss = forward(ids[:, :-1], ids[:, 1:]) / options.micros
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    with attention(options):
        for i in range(options.warmup):
            step(batches[i % len(batches)])
        wait()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        for i in range(options.steps):
            loss = step(batches[i % len(batches)])
        last = loss.item()
        wait()
        seconds = time.perf_counter() - begin
    tokens = options.steps * options.micros * options.rows * options.seq
    print(json.dumps({"peer": f"torch {torch.__version__} {options.mode}", "rows": options.rows,
                      "tokens_per_s": round(tokens / seconds, 1), "step_ms": round(seconds / options.steps * 1e3, 3),
                      "peak_mib": torch.cuda.max_memory_allocated() >> 20 if on_gpu else 0,
                      "reserved_mib": torch.cuda.max_memory_reserved() >> 20 if on_gpu else 0,
                      "parameters": sum(p.numel() for p in model.parameters()), "last_loss": last}), flush=True)


if __name__ == "__main__":
    main()
