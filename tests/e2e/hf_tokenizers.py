"""Encodes texts with our tokenizers and with Hugging Face's: every token must be the same.

    python3 hf_tokenizers.py TOKENIZE_TEXTS FOLDER CORPUS_BYTES FUZZED_STRINGS [FAMILY...]

Trains one tokenizer per family in FOLDER, and encodes FUZZED_STRINGS strings with each. The corpus is what Debian packages
install. Exits 1 at the first text that differs, which is printed.
"""
import sys
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from fuzzed_texts import fuzzed  # noqa: E402
from tokenizer_families import FAMILIES, Ours, debian_texts  # noqa: E402

SEED = 7


def known(text):
    """PCRE2 10.42 knows Unicode 14, as Python 3.11 does."""
    return all(unicodedata.category(c) != "Cn" for c in text)


def check(name, theirs, ours, text):
    want, got = theirs.encode(text).ids, ours.encode(text.encode())
    if want != got:
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        print(f"{name}: {text[:200]!r}: token {at} of {len(want)} differs: theirs {want[at:at + 8]} "
              f"{[theirs.id_to_token(i) for i in want[at:at + 8]]}, ours {got[at:at + 8]}")
        sys.exit(1)
    return len(want)


def main():
    program, folder, corpus, strings = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    texts = list(debian_texts(corpus))
    for name in sys.argv[5:] or FAMILIES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        tokenizer = FAMILIES[name](texts[::5])
        tokenizer.save(str(folder / name / "tokenizer.json"))
        ours = Ours(program, folder / name)
        tokens = sum(check(name, tokenizer, ours, text) for text in texts if name != "cases" or known(text))
        compared = 0
        for text in fuzzed(SEED, strings):
            if name != "cases" or known(text):
                check(name, tokenizer, ours, text)
                compared += 1
        # Any bytes come back as they were; normalised ones as they are then.
        data = bytes(range(256)) * 2 + b"\xff\xfe caf\xc3 \xe2\x82"
        if name != "qwen" and ours.decode([i for i in ours.encode(data)]).endswith(data) is False:
            sys.exit(f"{name}: bytes that are not UTF-8 did not come back")
        if tokenizer.decode(tokenizer.encode(texts[0]).ids, skip_special_tokens=False).encode() != ours.decode(
                ours.encode(texts[0].encode())):
            sys.exit(f"{name}: decoded texts differ")
        print(f"{name}: {len(texts)} texts, {sum(len(t.encode()) for t in texts)} bytes, {tokens} tokens, "
              f"{compared} fuzzed strings: the same")


if __name__ == "__main__":
    main()
