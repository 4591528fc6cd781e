"""The peer of bench/decode.cpp: the same weights in Hugging Face's transformers.

    transformers_generate.py CHECKPOINT TOKENS [cpu|cuda] [float32|bfloat16]
"""
import json
import sys
import time
import tomllib
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import GPT2Config, GPT2LMHeadModel

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2's own layout is [in, out]


def weights_of(folder):
    """The parameters of a checkpoint of one rank, which has every tensor whole."""
    index = json.loads((folder / "index.json").read_text())
    state = {}
    for name, tensor in index["tensors"].items():
        if "/" in name:  # of the optimizer
            continue
        (piece,) = tensor["pieces"]
        with safe_open(folder / piece["file"], "pt") as file:
            value = file.get_tensor(piece["key"])
        state[f"transformer.{name}"] = value.t().contiguous() if name.endswith(TRANSPOSED) else value
    state["lm_head.weight"] = state["transformer.wte.weight"]
    return state, tomllib.loads(index["extra"]["config"])["model"]


def load(folder, device, dtype):
    state, model = weights_of(folder)
    config = GPT2Config(vocab_size=model["vocab"], n_positions=model["seq"], n_embd=model["hidden"],
                        n_layer=model["layers"], n_head=model["heads"], eos_token_id=None, bos_token_id=None)
    peer = GPT2LMHeadModel(config)
    missing = peer.load_state_dict(state, strict=False).missing_keys
    assert not [name for name in missing if not name.endswith("attn.bias")], missing
    return peer.to(device, getattr(torch, dtype)).eval()


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    model = load(folder, device, sys.argv[4] if len(sys.argv) > 4 else "float32")
    prompt = torch.arange(100, 116, device=device).view(1, -1)
    for _ in sys.stdin:
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count,
                                 min_new_tokens=count, do_sample=False, use_cache=True, pad_token_id=0)
        tokens = out[0, prompt.size(1):].tolist()
        seconds = time.perf_counter() - begin
        print(json.dumps({"bench": "generate", "tokens_per_s": round(len(tokens) / seconds, 2), "tokens": tokens}),
              flush=True)


main()
