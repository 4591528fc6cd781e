"""Llama, Qwen2 and Mixtral by transformers, from our initial weights and on our tokens: prints how far ours are from theirs.

    python3 torch_llama.py FOLDER

Each .safetensors of FOLDER is one model: its weights by our names before the first step, `tokens` of all steps, the
`logits` of the first tokens, the `losses` of training, and as metadata a configuration. A line for each has the largest
difference of a logit and of a loss, relative to the largest one.

transformers computes positions and norms in float32 whatever the model's dtype is. For a model in float64 its modules
get a torch whose float32 is float64: their own formulas, exactly.
"""
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers import (LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM)
from transformers import modeling_rope_utils
from transformers.models.llama import modeling_llama
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2


AS_FLOAT = torch.Tensor.float


class TorchInDouble:
    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def rotated_pairs(rows, head):
    """The rows of q or k whose pairs are neighbours, as transformers' halves: 0 2 4 ... 1 3 5 ..."""
    return rows.view(-1, head // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def their_weights(ours, config):
    heads, kv, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    theirs = {"model.embed_tokens.weight": ours["embed.weight"], "model.norm.weight": ours["norm.weight"],
              "lm_head.weight": ours["embed.weight" if config["tie_word_embeddings"] else "lm_head.weight"]}
    for i in range(config["num_hidden_layers"]):
        to, of = f"model.layers.{i}.", f"layers.{i}."
        theirs[to + "input_layernorm.weight"] = ours[of + "norm_1.weight"]
        theirs[to + "post_attention_layernorm.weight"] = ours[of + "norm_2.weight"]
        theirs[to + "self_attn.o_proj.weight"] = ours[of + "attn.proj.weight"]
        if config["model_type"] == "mixtral":
            theirs[to + "mlp.gate.weight"] = ours[of + "moe.router.weight"]
            theirs[to + "mlp.experts.gate_up_proj"] = ours[of + "moe.experts.gate_up"]
            theirs[to + "mlp.experts.down_proj"] = ours[of + "moe.experts.down"]
        else:
            theirs[to + "mlp.down_proj.weight"] = ours[of + "mlp.down.weight"]
            gate, up = ours[of + "mlp.gate_up.weight"].chunk(2)
            theirs[to + "mlp.gate_proj.weight"], theirs[to + "mlp.up_proj.weight"] = gate, up
        for kind in ("weight", "bias"):
            if of + "attn.qkv." + kind not in ours:
                continue
            q, k, v = ours[of + "attn.qkv." + kind].split([heads * head, kv * head, kv * head])
            if config["neighbours"]:
                q, k = rotated_pairs(q, head), rotated_pairs(k, head)
            for name, rows in (("q", q), ("k", k), ("v", v)):
                theirs[f"{to}self_attn.{name}_proj.{kind}"] = rows
    return theirs


def make(config, ours):
    qwen = config["model_type"] == "qwen2"
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    settings = {name: config[name] for name in names}
    if qwen:
        del settings["head_dim"]
    settings["rope_parameters"] = {"rope_theta": config["rope_theta"], **config["rope"]}
    settings["attn_implementation"] = "eager"
    if config["model_type"] == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(
            **settings, num_local_experts=config["experts"], num_experts_per_tok=config["top_k"], sliding_window=None,
            experts_implementation="eager"))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**settings)) if qwen else LlamaForCausalLM(LlamaConfig(**settings))
    weights = their_weights(ours, config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    return model


def compare(path):
    with safe_open(path, "pt") as file:
        ours = {name: file.get_tensor(name) for name in file.keys()}
        config = json.loads(file.metadata()["config"])
    double = config["dtype"] == "float64"
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    for module in (modeling_rope_utils, modeling_llama, modeling_mixtral, modeling_qwen2):
        module.torch = TorchInDouble() if double else torch
    torch.Tensor.float = torch.Tensor.double if double else AS_FLOAT
    model = make(config, ours)
    tokens = ours["tokens"]
    with torch.no_grad():
        logits = model(tokens[0][:, :-1]).logits
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=0.003, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for rows in tokens:
        found = model(rows[:, :-1]).logits
        loss = F.cross_entropy(found.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    losses = torch.tensor(losses, dtype=torch.float64)
    for got, wanted in ((ours["logits"], logits), (ours["losses"], losses)):
        print(((got - wanted).abs().max() / wanted.abs().max()).item(), end=" ")
    print(flush=True)


def main():
    for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
        compare(path)


if __name__ == "__main__":
    main()
