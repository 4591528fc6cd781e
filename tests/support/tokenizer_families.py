"""Small tokenizers of the published families, trained here with Hugging Face `tokenizers`: none can be downloaded in a
test. Each has its family's split pattern, special tokens and post-processor."""
import subprocess
import struct
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# No family's: words of one case, as newer tokenizers have them. It goes through PCRE2.
CASES = r"\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?\p{Ll}+|\p{L}+|\d{1,2}| ?[^\s\p{L}\d]+|\s+(?!\S)|\s+"


def _train(pre_tokenizer, texts, vocab, special, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def _split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(texts, vocab=6000):
    tokenizer = _train(pre_tokenizers.ByteLevel(add_prefix_space=False), texts, vocab, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3(texts, vocab=6000):
    """Merges are passed over for pieces that are tokens, and every text begins with a token."""
    tokenizer = _train(_split(LLAMA3), texts, vocab, [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"] +
                                 [f"<|reserved_special_token_{i}|>" for i in range(20)] +
                                 ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    tokenizer.model.ignore_merges = True
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def qwen(texts, vocab=6000):
    """Texts are normalised; some added tokens are no special ones, and are looked for in the normalised text."""
    tokenizer = _train(_split(QWEN), texts, vocab, [], normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False),
                          AddedToken("e\u0301t\u00e9", normalized=True), AddedToken("<|", normalized=True),
                          AddedToken("<|pad|>", normalized=False, lstrip=True, rstrip=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def cases(texts, vocab=3000):
    return _train(_split(CASES), texts, vocab, ["<|endoftext|>"])


FAMILIES = {"gpt2": gpt2, "llama3": llama3, "qwen": qwen, "cases": cases}


class Ours:
    """bench/tokenize_texts.cpp with a tokenizer's files."""

    def __init__(self, program, tokenizer):
        self.process = subprocess.Popen([str(program), str(tokenizer)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _ask(self, repeat, data, each):
        self.process.stdin.write(struct.pack("<II", repeat, len(data)) + data)
        self.process.stdin.flush()
        seconds, count = struct.unpack("<dI", self.process.stdout.read(12))
        return seconds, self.process.stdout.read(count * each)

    def timed(self, data, repeat):
        return self._ask(repeat, data, 4)[0]

    def encode(self, data):
        ids = self._ask(1, data, 4)[1]
        return list(struct.unpack(f"<{len(ids) // 4}i", ids))

    def decode(self, ids):
        return self._ask(0, struct.pack(f"<{len(ids)}i", *ids), 1)[1]


def debian_texts(most_bytes):
    """Documentation in many languages and source code, as this machine's Debian packages install them."""
    import gzip
    groups = [("/usr/share/doc", "*"), ("/usr/share/man", "*.gz"), ("/usr/include", "*.h"), ("/usr/lib/python3", "*.py"),
              ("/usr/lib/python3.11", "*.py"), ("/usr/share/locale", "*.mo"), ("/usr/share/perl", "*.p[lm]")]
    for folder, pattern in groups:
        left = most_bytes // len(groups)
        files = sorted(path for path in Path(folder).rglob(pattern) if path.is_file() and not path.is_symlink())
        # Spread over the folder: languages and packages lie one after the other.
        for path in (files[(i * 7919) % len(files)] for i in range(len(files))):
            data = path.read_bytes()
            if path.suffix == ".gz":
                data = gzip.decompress(data)
            text = data.decode("utf-8", errors="replace" if path.suffix == ".mo" else "ignore")
            left -= len(text)
            if left < 0:
                break
            yield text
