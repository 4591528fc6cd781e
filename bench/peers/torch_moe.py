"""A mixture of experts in PyTorch eager, with a loop over experts: the peer of bench/moe_layer.cpp.

    python3 torch_moe.py [TOKENS HIDDEN EXPERTS FFN TOP_K STEPS]

For every line on stdin it runs the steps and prints one JSON object: {"step_ms": 141.2, "sum": ...}.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F


def waves(shape, scale):
    numel = 1
    for size in shape:
        numel *= size
    return torch.arange(numel, dtype=torch.float64).mul(7).sin().mul(scale).float().view(shape)


def main():
    torch.set_num_threads(1)
    sizes = [4096, 256, 8, 512, 2, 5]
    for i, given in enumerate(sys.argv[1:7]):
        sizes[i] = int(given)
    tokens, hidden, experts, ffn, top_k, steps = sizes
    router = waves((experts, hidden), 0.5).requires_grad_()
    up = [w.clone().requires_grad_() for w in waves((experts, ffn, hidden), 0.1)]
    down = [w.clone().requires_grad_() for w in waves((experts, hidden, ffn), 0.1)]
    x = waves((tokens, hidden), 1).requires_grad_()
    weights = [router, *up, *down, x]

    def forward():
        best, which = F.softmax(F.linear(x, router), dim=-1).topk(top_k, dim=-1)
        y = torch.zeros_like(x)
        for expert in range(experts):
            token, place = torch.where(which == expert)
            h = F.linear(F.gelu(F.linear(x[token], up[expert]), approximate="tanh"), down[expert])
            y = y.index_add(0, token, h * best[token, place, None])
        return y

    def step():
        for one in weights:
            one.grad = None
        y = forward()
        y.square().sum().backward()
        return y.detach().double().sum().item()

    total = step()
    for _ in sys.stdin:
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            total = step()
            times.append(1e3 * (time.perf_counter() - began))
        print(json.dumps({"step_ms": round(statistics.median(times), 3), "sum": total}), flush=True)


main()
