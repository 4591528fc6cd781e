"""Puts the tensors of checkpoints together with Python's safetensors and torch alone.

    python3 read_checkpoint.py CHECKPOINT OTHER...

Reads every file in full, lays every piece in its place, and fails with the first element that no
piece or more than one holds, or the first tensor that is not the same, bit for bit, in all of them.
"""
import json
import math
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file


def place_of(piece, shape):
    """Where the piece's elements lie in the flat whole."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    for dim, (begin, size) in enumerate(zip(piece["offset"], piece["shape"])):
        places = places.narrow(dim, begin, size)
    return places.reshape(-1)[piece["begin"] : piece["begin"] + piece["count"]]


def read(folder):
    folder = pathlib.Path(folder)
    index = json.loads((folder / "index.json").read_text())
    files = {name: load_file(folder / name) for name in index["files"]}
    for name in files:
        with safe_open(folder / name, "pt") as opened:
            assert opened.metadata()["step"] == str(index["step"]), name
    tensors = {}
    for name, info in index["tensors"].items():
        shape, whole, times = info["shape"], None, torch.zeros(math.prod(info["shape"]))
        for piece in info["pieces"]:
            stored = files[piece["file"]].pop(piece["key"])
            if piece["count"] == math.prod(shape):
                assert piece["key"] == name and list(stored.shape) == shape, name
            if whole is None:
                whole = torch.zeros(math.prod(shape), dtype=stored.dtype)
            places = place_of(piece, shape)
            whole[places] = stored.reshape(-1)
            times[places] += 1
        assert whole is not None and bool((times == 1).all()), f"{folder}: {name} is not whole"
        tensors[name] = whole.reshape(shape)
    left = {name: list(entries) for name, entries in files.items() if entries}
    assert not left, f"{folder}: nobody knows {left}"
    return tensors


def main():
    first = read(sys.argv[1])
    for other in sys.argv[2:]:
        tensors = read(other)
        assert tensors.keys() == first.keys(), other
        for name, tensor in tensors.items():
            same = tensor.dtype == first[name].dtype and torch.equal(tensor, first[name])
            assert same, f"{other}: {name} differs"
    print(f"{len(first)} tensors in {len(sys.argv) - 1} checkpoints, equal")


main()
