"""Local updates in PyTorch, written from the papers: every replica is a model of its own in this one process.

    python3 torch_local.py START_DIR TOKENS_FILE RUN_DIR REPLICAS [RUN_DIR REPLICAS ...]

START_DIR holds checkpoints/step-00000000, the weights before the first update. RUN_DIR holds a run that is judged: config.toml,
samples.jsonl, metrics.jsonl (of which only the learning rates are read) and the last checkpoint. Prints for each run the drift before
each meeting, the largest difference between the common weights of that checkpoint and those computed here, and "end".

    average     model averaging
    bmuf        Chen and Huo 2016: classical and Nesterov block momentum
    slowmo      Wang et al. 2019, algorithm 1
    diloco      Douillard et al. 2023, algorithm 1; torch.optim.SGD(nesterov=True) is the outer optimizer
    streaming   Douillard et al. 2025: fragments in turn, applied `delay` steps later, mixed with the replica's own weights
"""
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from torch_gpt import forward, keys, read_safetensors


def load(folder):
    found = {}
    for part in sorted(folder.glob("*.safetensors")):
        found.update({k: v for k, v in read_safetensors(part).items() if "/" not in k})
    return found


def in_model_order(names):
    """Parameters as the model registers them: embeddings, blocks, the last norm."""
    inside = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    layers = 1 + max(int(n.split(".")[1]) for n in names if n.startswith("h."))
    order = ["wte.weight", "wpe.weight"]
    order += [f"h.{i}.{n}.{kind}" for i in range(layers) for n in inside for kind in ("weight", "bias")]
    return order + ["ln_f.weight", "ln_f.bias"]


def fragments_of(start, count):
    """Consecutive parameters, about as many elements in each fragment."""
    total, before = sum(t.numel() for t in start.values()), 0
    parts = [[] for _ in range(count)]
    for name in in_model_order(start):
        size = start[name].numel()
        parts[min(count - 1, (before + size // 2) * count // total)].append(name)
        before += size
    return parts


class Outer:
    """One fragment's common weights and what its outer optimizer remembers."""

    def __init__(self, sync, start):
        self.sync, self.weights = sync, {k: v.clone() for k, v in start.items()}
        self.velocity = {k: torch.zeros_like(v) for k, v in start.items()}
        self.model = {k: v.clone() for k, v in start.items()}  # BMUF's W, beside the starting point
        self.leaves = {k: v.clone().requires_grad_() for k, v in start.items()}
        self.optimizer = None
        if sync["kind"] == "diloco":
            m = float(sync["momentum"])
            self.optimizer = torch.optim.SGD(self.leaves.values(), lr=float(sync["lr"]), momentum=m,
                                             nesterov=sync["nesterov"] == "true" and m > 0)

    def advance(self, mean, samples, rate):
        kind, m, lr = self.sync["kind"], float(self.sync["momentum"]), float(self.sync["lr"])
        if float(self.sync["time_constant"]) > 0:
            m = math.exp(-samples / float(self.sync["time_constant"]))
        for name, x in self.weights.items():
            y, v = mean[name], self.velocity[name]
            if kind in ("average", "post-local"):
                x.copy_(y)
            elif kind == "bmuf":
                v.copy_(m * v + lr * (y - x))
                self.model[name] += v
                x.copy_(self.model[name] + (m * v if self.sync["nesterov"] == "true" else 0))
            elif kind == "slowmo":
                v.copy_(m * v + (x - y) / rate)
                x.copy_(x - lr * rate * v)
            else:
                self.leaves[name].grad = x - y
        if self.optimizer:
            self.optimizer.step()
            for name, x in self.weights.items():
                x.copy_(self.leaves[name].detach())


def make_inner(config, p):
    decay = float(config["optim.weight_decay"])
    groups = [{"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": decay},
              {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0}]
    if config["optim.kind"] == '"sgd"':
        return torch.optim.SGD(groups, lr=1.0, momentum=float(config["optim.momentum"]))
    betas = tuple(float(b) for b in config["optim.betas"].strip("[]").split(","))
    return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=float(config["optim.eps"]))


def block_of(batch, count, index):
    """Contiguous and as even as possible; the first ones have one more."""
    each, more = divmod(len(batch), count)
    begin = index * each + min(index, more)
    return batch[begin:begin + each + (index < more)]


def judge(start, tokens, run, count):
    config = keys(run / "config.toml")
    sync = {k.split(".")[1]: v.strip('"') for k, v in config.items() if k.startswith("sync.")}
    seq, heads = int(config["model.seq"]), int(config["model.heads"])
    every, delay, keep = int(sync["every"]), int(sync["delay"]), float(sync["keep_own"])
    rates = [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    batches = [json.loads(line)["samples"] for line in (run / "samples.jsonl").read_text().splitlines()]
    replicas = [{k: v.clone().requires_grad_() for k, v in start.items()} for _ in range(count)]
    inner = [make_inner(config, p) for p in replicas]
    parts = fragments_of(start, int(sync["fragments"]))
    outer = [Outer(sync, {k: start[k] for k in names}) for names in parts]
    counted = [[0.0] * count for _ in parts]
    samples = [0.0] * len(parts)
    flights = [None] * len(parts)
    for step in range(1, len(rates) + 1):
        for r, p in enumerate(replicas):
            mine = block_of(batches[step - 1], count, r)
            rows = torch.stack([tokens[i * seq:i * seq + seq + 1] for i in mine]).long()
            loss = F.cross_entropy(forward(p, rows[:, :-1], heads).flatten(0, 1), rows[:, 1:].flatten())
            inner[r].zero_grad()
            loss.backward()
            if float(config["optim.clip"]) > 0:
                torch.nn.utils.clip_grad_norm_(p.values(), float(config["optim.clip"]))
            for group in inner[r].param_groups:
                group["lr"] = rates[step - 1]
            inner[r].step()
            for f in range(len(parts)):
                counted[f][r] += len(mine) * seq
        with torch.no_grad():
            for f, names in enumerate(parts):
                samples[f] += len(batches[step - 1])
                if (step - f * every // len(parts)) % every == 0:
                    weights = [w / sum(counted[f]) for w in counted[f]]
                    mean = {k: sum(w * p[k] for w, p in zip(weights, replicas)) for k in names}
                    drift = math.sqrt(sum(w * float(sum(((p[k] - mean[k]) ** 2).sum() for k in names))
                                          for w, p in zip(weights, replicas)))
                    flights[f] = (step + delay, mean, samples[f], drift)
                    counted[f], samples[f] = [0.0] * count, 0.0
                if flights[f] and flights[f][0] == step:
                    _, mean, seen, drift = flights[f]
                    outer[f].advance(mean, seen, rates[step - 1 - delay])
                    print("drift", step, repr(drift))
                    flights[f] = None
                    own = keep if delay > 0 else 0.0
                    for p in replicas:
                        for k in names:
                            p[k].copy_(own * p[k] + (1 - own) * outer[f].weights[k])
    ours = load(run / f"checkpoints/step-{len(rates):08d}")
    common = {k: v for one in outer for k, v in one.weights.items()}
    moved = max(float((common[k] - start[k]).abs().max()) for k in common)
    print("moved", repr(moved))
    print("difference", repr(max(float((common[k] - ours[k]).abs().max()) for k in common)))
    print("end")


def main():
    torch.set_num_threads(1)  # small tensors: more threads would only wait for each other
    start = load(Path(sys.argv[1]) / "checkpoints/step-00000000")
    tokens = torch.frombuffer(bytearray(Path(sys.argv[2]).read_bytes()), dtype=torch.uint16).to(torch.int32)
    for run, count in zip(sys.argv[3::2], sys.argv[4::2]):
        judge(start, tokens, Path(run), int(count))


main()
