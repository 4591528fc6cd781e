"""Trains tokenizers with Hugging Face's BpeTrainer on the documents that `trireme data train-tokenizer` had: the
vocabulary and the merges must be the same, and both must cut texts alike.

    python3 hf_trainer.py FOLDER VOCAB TEXT...

FOLDER/FAMILY/tokenizer.json is ours.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from tokenizer_families import LLAMA3, QWEN, _split, _train  # noqa: E402
from tokenizers import Tokenizer, normalizers, pre_tokenizers  # noqa: E402

FAMILIES = {"gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
            "llama3": (_split(LLAMA3), None),
            "qwen": (_split(QWEN), normalizers.NFC())}


def main():
    folder, vocab = Path(sys.argv[1]), int(sys.argv[2])
    texts = [Path(path).read_bytes().decode() for path in sys.argv[3:]]
    for name, (pre_tokenizer, normalizer) in FAMILIES.items():
        theirs = _train(pre_tokenizer, texts, vocab, ["<|endoftext|>", "<|im_end|>"], normalizer)
        path = folder / name / "tokenizer.json"
        ours = json.loads(path.read_text())["model"]
        model = json.loads(theirs.to_str())["model"]
        if ours["vocab"] != model["vocab"] or ours["merges"] != model["merges"]:
            at = next((i for i, (a, b) in enumerate(zip(ours["merges"], model["merges"])) if a != b), -1)
            sys.exit(f"{name}: merge {at} differs: ours {ours['merges'][at]}, theirs {model['merges'][at]}")
        loaded = Tokenizer.from_file(str(path))
        for text in texts:
            if loaded.encode(text).ids != theirs.encode(text).ids:
                sys.exit(f"{name}: texts are cut in another way")
        print(f"{name}: {len(model['vocab'])} tokens, {len(model['merges'])} merges: the same")


if __name__ == "__main__":
    main()
