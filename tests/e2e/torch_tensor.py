"""Tensor-parallel layers in PyTorch (DTensor, two gloo processes), from our weights: how far our results are.

    python3 torch_tensor.py FOLDER

FOLDER/manifest.json is {"heads": H, "tensors": {NAME: SHAPE}}; FOLDER/NAME.bin holds the float64 values. A layer
(mlp, attn) has x, the weights and biases, dy (the gradient of the output) and our results, y and the gradients.
Prints one JSON object, by name max|theirs - ours| / max|ours| on the worse rank; fails if that is no number or a
tensor is missing.
"""
import json
import math
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANKS = 2
LINEARS = {"mlp": ("up", "down"), "attn": ("qkv", "proj")}


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.head_dim = hidden // heads
        self.q, self.k, self.v, self.proj = (nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, x):
        q, k, v = (linear(x) for linear in (self.q, self.k, self.v))
        q, k, v = (z.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


def names(layer):
    """What a layer is given, and what comes out of it."""
    parameters = [f"{layer}.{linear}.{kind}" for linear in LINEARS[layer] for kind in ("weight", "bias")]
    outputs = [f"{layer}.y", f"{layer}.x.grad"] + [f"{name}.grad" for name in parameters]
    return [f"{layer}.x", f"{layer}.dy"] + parameters, outputs


def read(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    tensors = {}
    for name in [name for layer in LINEARS for side in names(layer) for name in side]:
        if name not in manifest["tensors"]:
            sys.exit(f"{folder}/manifest.json: no tensor {name}")
        shape, path = manifest["tensors"][name], folder / f"{name}.bin"
        if not path.exists() or path.stat().st_size != 8 * math.prod(shape):
            sys.exit(f"{path}: missing, or not {8 * math.prod(shape)} bytes, the {shape} of the manifest")
        tensors[name] = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float64).view(shape)
    return manifest["heads"], tensors


def make_mlp(tensors, mesh):
    model = Mlp(tensors["mlp.x"].shape[-1], tensors["mlp.up.bias"].numel()).double()
    model.load_state_dict({name: tensors[f"mlp.{name}"] for name in model.state_dict()})
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def make_attention(tensors, heads, mesh):
    model = Attention(tensors["attn.x"].shape[-1], heads).double()
    state = {name: tensors[f"attn.{name}"] for name in ("proj.weight", "proj.bias")}
    for kind in ("weight", "bias"):
        for name, third in zip("qkv", tensors[f"attn.qkv.{kind}"].chunk(3)):
            state[f"{name}.{kind}"] = third
    model.load_state_dict(state)
    return parallelize_module(model, mesh, {"[qkv]": ColwiseParallel(), "proj": RowwiseParallel()})


def results(layer, model, tensors):
    x = tensors[f"{layer}.x"].clone().requires_grad_()
    y = model(x)
    y.backward(tensors[f"{layer}.dy"])
    gradients = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    if layer == "attn":
        for kind in ("weight", "bias"):
            gradients[f"qkv.{kind}"] = torch.cat([gradients.pop(f"{name}.{kind}") for name in "qkv"])
    found = {f"{layer}.{name}.grad": gradient for name, gradient in gradients.items()}
    return {f"{layer}.y": y.detach(), f"{layer}.x.grad": x.grad, **found}


def difference(name, theirs, ours):
    if theirs.shape != ours.shape:
        raise ValueError(f"{name}: shape {list(ours.shape)}, but PyTorch's has {list(theirs.shape)}")
    relative = (theirs - ours).abs().max() / ours.abs().max()
    if not relative.isfinite():
        raise ValueError(f"{name}: the difference is {relative.item()}; ours is all zero, or not finite")
    return relative


def run(rank, folder):
    torch.set_num_threads(1)
    heads, tensors = read(folder)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (RANKS,))
    found = {**results("mlp", make_mlp(tensors, mesh), tensors),
             **results("attn", make_attention(tensors, heads, mesh), tensors)}
    wanted = [name for layer in LINEARS for name in names(layer)[1]]
    differences = torch.stack([difference(name, found[name], tensors[name]) for name in wanted])
    dist.all_reduce(differences, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "worst": differences.max().item(),
                          "tensors": dict(zip(wanted, differences.tolist()))}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may still run when Python ends, and would end it by SIGABRT


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    read(folder)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(free_port())
    mp.spawn(run, args=(folder,), nprocs=RANKS)
