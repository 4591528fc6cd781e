"""Strings that look for the edges of tokenizers: white space of all kinds, contractions, digits, marks, scripts, emoji,
pieces of special tokens, and code points from anywhere."""
import random

PARTS = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\u180e", "\u200b",
    "'s", "'S", "'t", "'RE", "'ve", "'lL", "'d", "'\u017f", "''", "\u2019s", "'m", "'x", "I'll", "can't",
    "1", "12", "123", "1234567", "\u0661\u0662\u0663\u0664", "\u00bd", "\u2167", "\U0001d7ce", "3.14", "0x1F",
    "a", "the", "Hello", "world", "\u00e9", "e\u0301", "e\u0323\u0301", "\u1e69", "s\u0307\u0323", "\u0301", "\u0327\u0301",
    "\u00c5", "\u212b", "A\u030a", "\u0344", "\u0958", "\uac00", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u4e2d\u6587",
    "\u65e5\u672c\u8a9e", "\u0627\u0644", "\u05d0\u05b7", "\u0e01\u0e33", "\u0928\u0940", "\U0001f600", "\U0001f468\u200d\U0001f469", "\ufb01", "\uff21",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<tool_call>", "<|", "|>", "<", ">",
    " <|pad|> ", "<|pad|>", "<|endof", "text|>", "\u00e9t\u00e9", "e\u0301te\u0301", "<|reserved_special_token_1|>",
    "<|reserved_special_token_1", "...", "!?", "---", "==", "#include <stdio.h>", "def f(x):\n    return x\n", "/*", "*/", "\\", "\"",
    "_", "__init__", "http://a.b/c?d=e&f", "$", "\u20ac", "\x00", "\x7f", "\ufffd", "\ufeff", "\U00010000", "\U0010ffff",
]


def fuzzed(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.random()
        if kind < 0.7:
            yield "".join(rng.choice(PARTS) for _ in range(rng.randint(0, 14)))
        elif kind < 0.85:
            yield "".join(chr(rng.choice((rng.randint(0, 0x7F), rng.randint(0, 0x2FF), rng.randint(0, 0xD7FF))))
                          for _ in range(rng.randint(1, 24)))
        elif kind < 0.95:
            points = (rng.randint(0, 0x10FFFF) for _ in range(rng.randint(1, 12)))
            yield "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)
        else:
            yield rng.choice(PARTS) * rng.randint(1, 200)
