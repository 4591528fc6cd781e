"""The same GPT in PyTorch, from our initial weights and on our samples: prints its losses.

    python3 torch_gpt.py RUN_DIR TOKENS_FILE STEPS [float64|bfloat16|float16 [cpu|cuda [BASE_DIR]]]

With a precision of 16 bits it runs under torch.autocast, and float16 with a torch.amp.GradScaler; it then prints the
loss scale of each step and whether it was skipped, too.

BASE_DIR: RUN_DIR trains low-rank adapters only, of the weights that this run began with.

RUN_DIR holds the run that is judged: config.toml, checkpoints/step-00000000 (the weights before the first
update), samples.jsonl and metrics.jsonl, of which only the learning rates are read.
"""
import json
import struct
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

DTYPES = {"F32": torch.float32, "F64": torch.float64}


def read_safetensors(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        data = bytearray(raw[8 + size + begin:8 + size + end])
        tensors[name] = torch.frombuffer(data, dtype=DTYPES[info["dtype"]]).view(info["shape"]).clone()
    return tensors


def keys(path):
    section, found = "", {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            name, value = line.split("=", 1)
            found[f"{section}.{name.strip()}"] = value.strip()
    return found


def linear(p, name, x):
    h = F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])
    if f"{name}.lora_A.weight" in p:
        h = h + p["scale"] * F.linear(F.linear(x, p[f"{name}.lora_A.weight"]), p[f"{name}.lora_B.weight"])
    return h


def forward(p, ids, heads):
    x = p["wte.weight"][ids] + p["wpe.weight"][: ids.shape[1]]
    layer = 0
    while f"h.{layer}.ln_1.weight" in p:
        def named(name):
            return p[f"h.{layer}.{name}.weight"], p[f"h.{layer}.{name}.bias"]
        width = x.shape[-1]
        y = F.layer_norm(x, (width,), *named("ln_1"))
        q, k, v = linear(p, f"h.{layer}.attn.c_attn", y).split(width, dim=-1)
        q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + linear(p, f"h.{layer}.attn.c_proj", y)
        y = F.layer_norm(x, (width,), *named("ln_2"))
        y = F.gelu(linear(p, f"h.{layer}.mlp.c_fc", y), approximate="tanh")
        x = x + linear(p, f"h.{layer}.mlp.c_proj", y)
        layer += 1
    x = F.layer_norm(x, (x.shape[-1],), p["ln_f.weight"], p["ln_f.bias"])
    return F.linear(x, p["wte.weight"])


def samples_of(path, seq):
    """Sample i as input and target: of a stream of uint16, or line i of a .jsonl, where targets may be -100."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return lambda i: (torch.tensor(lines[i]["input"]), torch.tensor(lines[i]["target"]))
    tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint16).to(torch.int32)

    def of_stream(i):
        row = tokens[i * seq:i * seq + seq + 1].long()
        return row[:-1], row[1:]
    return of_stream


def main():
    torch.set_num_threads(1)  # threads of tiny operations wait for each other
    run, tokens_file, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    precision = sys.argv[4] if len(sys.argv) > 4 else "float32"
    device = sys.argv[5] if len(sys.argv) > 5 else "cpu"
    config = keys(run / "config.toml")
    seq, heads = int(config["model.seq"]), int(config["model.heads"])
    rows_of = samples_of(tokens_file, seq)
    p = {}
    for folder in [Path(base) for base in sys.argv[6:7]] + [run]:
        for part in sorted((folder / "checkpoints/step-00000000").glob("*.safetensors")):
            p.update({k: v for k, v in read_safetensors(part).items() if "/" not in k})
    p = {k: v.to(device, torch.float64 if precision == "float64" else v.dtype) for k, v in p.items()}
    trained = [v for k, v in p.items() if ".lora_" in k] or list(p.values())
    for tensor in trained:
        tensor.requires_grad_()
    p["scale"] = float(config["lora.alpha"]) / max(1, int(config["lora.rank"]))
    decay = float(config["optim.weight_decay"])
    betas = tuple(float(b) for b in config["optim.betas"].strip("[]").split(","))
    optimizer = torch.optim.AdamW(
        [{"params": [t for t in trained if t.dim() >= 2], "weight_decay": decay},
         {"params": [t for t in trained if t.dim() < 2], "weight_decay": 0.0}],
        lr=1.0, betas=betas, eps=float(config["optim.eps"]))
    rates = [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    batches = [json.loads(line)["samples"] for line in (run / "samples.jsonl").read_text().splitlines()]
    half = precision in ("bfloat16", "float16")
    scaler = torch.amp.GradScaler(device, init_scale=float(config["precision.loss_scale"]),
                                  growth_interval=int(config["precision.growth"]), enabled=precision == "float16")
    for step in range(steps):
        x, y = (torch.stack(each).to(device) for each in zip(*(rows_of(i) for i in batches[step])))
        with torch.autocast(device, dtype=torch.float16 if precision == "float16" else torch.bfloat16, enabled=half):
            loss = F.cross_entropy(forward(p, x, heads).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(trained, float(config["optim.clip"]))
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        scaler.step(optimizer)
        scaler.update()
        skipped = int(scaler.is_enabled() and scaler.get_scale() < scale)
        print(repr(loss.item()), scale, skipped, flush=True) if half else print(repr(loss.item()), flush=True)


if __name__ == "__main__":
    main()
