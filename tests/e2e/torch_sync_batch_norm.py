"""One rank of torch.nn.SyncBatchNorm on a GPU, in float64: how far the results of our batch norm are from its own.

    python3 torch_sync_batch_norm.py FOLDER RANK SIZE

Every rank runs it with the same FOLDER, through which they meet. FOLDER/manifest.json is {CASE: {"channels": C,
"channels_last": 0|1}}. FOLDER/CASE/RANK/shapes.json is {NAME: SHAPE}, and NAME.bin beside it holds float64 values:
given are x, dy, weight, bias, mean, var (the running ones), and found were y, dx, dweight, dbias, new_mean, new_var,
batches. The gradients of weight and bias are those of this rank's rows, as torch has them.
Prints one JSON object: for each case and result max|theirs - ours| / max(1, max|theirs|).
"""
import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

FOUND = ["y", "dx", "dweight", "dbias", "new_mean", "new_var", "batches"]


def read(folder, device):
    tensors = {}
    for name, shape in json.loads((folder / "shapes.json").read_text()).items():
        bytes_of = bytearray((folder / f"{name}.bin").read_bytes())
        values = torch.frombuffer(bytes_of, dtype=torch.float64) if bytes_of else torch.empty(0, dtype=torch.float64)
        tensors[name] = values.view(shape).to(device)
    return tensors


def torchs_results(case, given):
    norm = torch.nn.SyncBatchNorm(case["channels"]).double().to(given["x"].device)
    with torch.no_grad():
        for to, name in [(norm.weight, "weight"), (norm.bias, "bias"), (norm.running_mean, "mean"),
                         (norm.running_var, "var")]:
            to.copy_(given[name])
    layout = torch.channels_last if case["channels_last"] else torch.contiguous_format
    x = given["x"].clone(memory_format=layout).requires_grad_()
    y = norm(x)
    y.backward(given["dy"])
    # A rank without rows gets no gradients of the parameters: they are zeros.
    gradient = lambda one: torch.zeros_like(one) if one.grad is None else one.grad
    results = [y.detach(), gradient(x), gradient(norm.weight), gradient(norm.bias), norm.running_mean,
               norm.running_var, norm.num_batches_tracked.double()]
    return dict(zip(FOUND, results))


def differences(case, tensors):
    apart = {}
    for name, theirs in torchs_results(case, tensors).items():
        ours = tensors[name].view(theirs.shape)
        apart[name] = 0.0
        if theirs.numel() > 0:
            apart[name] = ((theirs - ours).abs().max() / max(1.0, theirs.abs().max().item())).item()
        if not math.isfinite(apart[name]):
            raise SystemExit(f"{name}: not a number")
    return apart


def run(folder, rank, size, device):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    cases = json.loads((folder / "manifest.json").read_text())
    found = {name: differences(case, read(folder / name / str(rank), device)) for name, case in cases.items()}
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3]), torch.device("cuda", 0))))
