"""ResNet and ViT in PyTorch, in float64 and with torchvision's structure, from our weights: how far our results are.

    python3 torch_images.py FOLDER

FOLDER/manifest.json is {CASE: {"kind": "resnet"|"vit", "options": {...}, "tensors": {NAME: SHAPE}}}. A case's
FOLDER/CASE/NAME.bin holds float64 values: images, targets (as numbers), the initial parameters and buffers, the
loss, and after one forward and backward "grad/PARAMETER" and "after/BUFFER".
Prints one JSON object: for each case and name max|theirs - ours| / max|theirs|; fails if a tensor is missing.
"""
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(i, o, kernel, stride=1):
    return nn.Conv2d(i, o, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """BasicBlock and Bottleneck of torchvision: the stride is in the 3x3 convolution."""

    def __init__(self, i, width, stride, deep):
        super().__init__()
        o = width * (4 if deep else 1)
        sizes = [(i, width, 1, 1), (width, width, 3, stride), (width, o, 1, 1)] if deep else [(i, width, 3, stride), (width, o, 3, 1)]
        self.count = len(sizes)
        for n, (a, b, kernel, s) in enumerate(sizes, 1):
            setattr(self, f"conv{n}", conv(a, b, kernel, s))
            setattr(self, f"bn{n}", nn.BatchNorm2d(b))
        self.downsample = nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o)) if stride != 1 or i != o else None

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        for n in range(1, self.count + 1):
            x = getattr(self, f"bn{n}")(getattr(self, f"conv{n}")(x))
            x = F.relu(x + identity) if n == self.count else F.relu(x)
        return x


class ResNet(nn.Module):
    def __init__(self, depth, classes, channels, stem, width=64):
        super().__init__()
        small, deep = stem == "cifar", depth == 50
        self.conv1 = conv(channels, width, 3) if small else conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        i = width
        for stage, count in enumerate([3, 4, 6, 3] if deep else [2, 2, 2, 2]):
            blocks = []
            for n in range(count):
                blocks.append(Block(i, width << stage, 2 if stage > 0 and n == 0 else 1, deep))
                i = (width << stage) * (4 if deep else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(i, classes)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class EncoderBlock(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(hidden, eps=1e-6) for _ in range(2))
        self.self_attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(hidden, ffn), nn.GELU(), nn.Linear(ffn, hidden))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, layers, hidden, heads, ffn, classes, image, channels, patch):
        super().__init__()
        self.conv_proj = nn.Conv2d(channels, hidden, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.pos_embedding = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, hidden))
        self.layers = nn.Sequential(*(EncoderBlock(hidden, heads, ffn) for _ in range(layers)))
        self.ln = nn.LayerNorm(hidden, eps=1e-6)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


OUR_NAMES = {"conv_proj": "embed.patch", "class_token": "embed.class_token", "pos_embedding": "embed.positions",
             "layers.": "h.", "self_attention.in_proj_": "attn.c_attn.", "self_attention.out_proj": "attn.c_proj",
             "mlp.0": "mlp.c_fc", "mlp.2": "mlp.c_proj"}


def our_name(kind, name):
    if kind == "vit":
        for theirs, ours in OUR_NAMES.items():
            name = name.replace(theirs, ours)
    return name


def differences(case, folder):
    tensors = {}
    for name, shape in case["tensors"].items():
        values = torch.frombuffer(bytearray((folder / f"{name}.bin").read_bytes()), dtype=torch.float64)
        tensors[name] = values.view(shape)
    kind = case["kind"]
    model = (ResNet if kind == "resnet" else ViT)(**case["options"]).double()
    ours = {name: our_name(kind, name) for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    with torch.no_grad():
        for name, one in [*model.named_parameters(), *model.named_buffers()]:
            one.copy_(tensors[ours[name]].view(one.shape))
    loss = F.cross_entropy(model(tensors["images"]), tensors["targets"].long(), reduction="sum")
    loss.backward()
    theirs = {"loss": loss.detach()}
    theirs |= {f"grad/{ours[name]}": one.grad for name, one in model.named_parameters()}
    theirs |= {f"after/{ours[name]}": one.double() for name, one in model.named_buffers()}
    unknown = [name for name in tensors if name.startswith(("grad/", "after/")) and name not in theirs]
    if unknown:
        raise SystemExit(f"PyTorch's model has no {unknown}")
    found = {}
    for name, one in theirs.items():
        apart = (one - tensors[name].view(one.shape)).abs().max() / max(one.abs().max().item(), 1e-30)
        if not math.isfinite(apart):
            raise SystemExit(f"{name}: not a number")
        found[name] = apart.item()
    return found


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    manifest = json.loads((folder / "manifest.json").read_text())
    print(json.dumps({name: differences(case, folder / name) for name, case in manifest.items()}))


if __name__ == "__main__":
    main()
