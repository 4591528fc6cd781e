"""Writes the samples that a run on text or on conversations must have, made with Hugging Face `tokenizers`.

    python3 text_samples.py text FILE OUT [TOKENIZER_JSON]       the file and the token after it, as uint16
    python3 text_samples.py chat FILE OUT TOKENIZER_JSON SEQ     ChatML: a line of {"input", "target"} a conversation

Without a tokenizer a token is a byte, and 256 ends the file.
"""
import json
import struct
import sys
from pathlib import Path

from tokenizers import Tokenizer


def text(path, out, tokenizer=None):
    data = Path(path).read_bytes()
    if tokenizer is None:
        ids = list(data) + [256]
    else:
        loaded = Tokenizer.from_file(tokenizer)
        ids = loaded.encode(data.decode()).ids + [loaded.token_to_id("<|endoftext|>")]
    Path(out).write_bytes(struct.pack(f"<{len(ids)}H", *ids))


def chat(path, out, tokenizer, seq):
    loaded, seq, lines = Tokenizer.from_file(tokenizer), int(seq), []
    for line in Path(path).read_text().splitlines():
        ids, learned = [], []

        def add(part, learn):
            more = loaded.encode(part, add_special_tokens=False).ids
            ids.extend(more)
            learned.extend([learn] * len(more))
        for message in json.loads(line)["messages"]:
            head = f"<|im_start|>{message['role']}\n"
            if message["role"] == "assistant":
                add(head, False)
                add(message["content"] + "<|im_end|>", True)
                add("\n", False)
            else:
                add(head + message["content"] + "<|im_end|>\n", False)
        ids, learned = ids[:seq + 1], learned[:seq + 1]
        target = [t if learn else -100 for t, learn in zip(ids, learned)][1:]
        lines.append(json.dumps({"input": ids[:seq] + [0] * (seq - len(ids)), "target": target + [-100] * (seq - len(target))}))
    Path(out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    {"text": text, "chat": chat}[sys.argv[1]](*sys.argv[2:])
