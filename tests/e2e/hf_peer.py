"""Models of Hugging Face's transformers: makes them, and judges what came back.

    python3 hf_peer.py FOLDER      answers questions until its parent ends: FOLDER/0.args has one command, a word a
                                   line; FOLDER/0.out is what it prints, or 0.err why it failed; then 1.args ...

    make OUT             makes small random models of every kind, each a folder with answers
    answer FOLDER...     writes answers.safetensors: the logits of some tokens, in float32, and the text that follows the
                         first of them
    write FOLDER TOKENS PROMPT    prints the prompt and the likeliest tokens after it, by the folder's own tokenizer
    same A B [A B]...    fails unless both folders give the same logits, bit for bit, and the same text
    losses TOKENS_FILE FOLDER RUN_DIR [FOLDER RUN_DIR]...    prints the losses of runs, each trained again from FOLDER in
                                                             float64

RUN_DIR holds a run that is judged: config.toml, samples.jsonl and metrics.jsonl, of which only the learning rates
are read.
"""
import contextlib
import io
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM)

VOCAB, SEQ = 61, 16
LLAMA = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=SEQ, bos_token_id=1, eos_token_id=None)
SCALED = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4, rope_theta=10000.0)
LINEAR = dict(rope_type="linear", factor=2.0, rope_theta=1e6)


def gpt2(**other):
    return GPT2LMHeadModel(GPT2Config(**{**dict(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=None), **other}))


def llama(**other):
    return LlamaForCausalLM(LlamaConfig(**{**LLAMA, **other}))


def qwen(**other):
    return Qwen2ForCausalLM(Qwen2Config(**{**LLAMA, "num_key_value_heads": 2, **other}))


MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2-untied": lambda: gpt2(tie_word_embeddings=False, n_inner=96),
    "gpt2-bf16": lambda: gpt2().to(torch.bfloat16),
    "llama": lambda: llama(num_key_value_heads=2),
    "llama-tied": lambda: llama(num_key_value_heads=1, tie_word_embeddings=True),
    "llama-scaled": lambda: llama(num_key_value_heads=4, rope_parameters=dict(SCALED, rope_theta=500000.0)),
    "llama-yarn": lambda: llama(num_key_value_heads=2, rope_parameters=YARN),
    "llama-f16": lambda: llama(num_key_value_heads=2).to(torch.float16),
    "qwen": lambda: qwen(),
    "qwen-tied": lambda: qwen(num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=LINEAR),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**{
        **LLAMA, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2})),
}


def ids(vocab, seq):
    return torch.arange(3 * seq).view(3, seq).mul(7).remainder(vocab)


def make(out):
    for name, model in MODELS.items():
        torch.manual_seed(sum(map(ord, name)))
        made = model()
        for parameter in made.parameters():  # norms and biases are not random by themselves
            parameter.data += (torch.randn(parameter.shape) * 0.1).to(parameter.dtype)
        made.save_pretrained(out / name, max_shard_size="40KB" if name in ("gpt2", "llama") else "5GB")
        answer(out / name)


@torch.no_grad()
def answer(folder):
    model = open_model(folder).float()
    tokens = ids(model.config.vocab_size, 12)
    text = model.generate(tokens[:1, :5], max_new_tokens=11, do_sample=False)
    save_file({"tokens": tokens, "text": text, "logits": model(tokens).logits}, folder / "answers.safetensors")


@torch.no_grad()
def write(folder, count, prompt):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    text = open_model(folder).generate(ids, max_new_tokens=int(count), do_sample=False)
    print(prompt + tokenizer.decode(text[0, ids.size(1):]))


def open_model(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, f"{folder}: {wrong}"
    return model.eval()


@torch.no_grad()
def same(a, b):
    one, other = open_model(a), open_model(b)
    theirs, ours = one.state_dict(), other.state_dict()
    assert theirs.keys() == ours.keys(), theirs.keys() ^ ours.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype and torch.equal(tensor, ours[name]), f"{b}: {name} differs"
    tokens = ids(one.config.vocab_size, 12)
    assert torch.equal(one(tokens).logits, other(tokens).logits), f"{a} and {b}: other logits"
    texts = [model.generate(tokens[:1, :5], max_new_tokens=7, do_sample=False) for model in (one, other)]
    assert torch.equal(*texts), f"{a} and {b}: another text"


def keys(path):
    section, found = "", {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            name, value = line.split("=", 1)
            found[f"{section}.{name.strip()}"] = value.strip()
    return found


def losses(tokens_file, folder, run):
    model = open_model(folder).double().train()
    config = keys(run / "config.toml")
    seq = int(config["model.seq"])
    tokens = torch.frombuffer(bytearray(tokens_file.read_bytes()), dtype=torch.uint16).to(torch.int64)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": float(config["optim.weight_decay"])},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=1.0, betas=tuple(float(b) for b in config["optim.betas"].strip("[]").split(",")),
        eps=float(config["optim.eps"]))
    rates = [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    batches = [json.loads(line)["samples"] for line in (run / "samples.jsonl").read_text().splitlines()]
    for rate, batch in zip(rates, batches):
        rows = torch.stack([tokens[i * seq:i * seq + seq + 1] for i in batch])
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, float(config["optim.clip"]))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        print(repr(loss.item()), flush=True)


def run(command, *words):
    paths = [Path(each) for each in words]
    if command == "write":
        write(*words)
    elif command == "make":
        make(*paths)
    elif command == "answer":
        for folder in paths:
            answer(folder)
    elif command == "losses":
        for folder, run_dir in zip(paths[1::2], paths[2::2]):
            losses(paths[0], folder, run_dir)
    else:
        for a, b in zip(paths[::2], paths[1::2]):
            same(a, b)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    folder, parent, number = Path(sys.argv[1]), os.getppid(), 0
    while os.getppid() == parent:
        question = folder / f"{number}.args"
        if not question.exists():
            time.sleep(0.01)
            continue
        number += 1
        result, text = "out", io.StringIO()
        try:
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
                run(*question.read_text().split("\n"))
        except BaseException:  # whatever it is, the test shows it
            result, text = "err", io.StringIO(traceback.format_exc())
        written = folder / "written"
        written.write_text(text.getvalue())
        written.rename(question.with_suffix(f".{result}"))


if __name__ == "__main__":
    main()
