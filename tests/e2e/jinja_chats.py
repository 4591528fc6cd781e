"""Renders conversations with our template interpreter and with Jinja2, set up as Hugging Face does: the texts must be the
same, and what one refuses the other must refuse.

    python3 jinja_chats.py RENDER_CHATS FOLDER CONVERSATIONS
"""
import json
import random
import subprocess
import sys
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

SUPPORT = Path(__file__).resolve().parent.parent / "support"
sys.path.insert(0, str(SUPPORT))
from tokenizer_families import gpt2  # noqa: E402

TEMPLATES = SUPPORT / "chat_templates"
PIECES = ["Hi", " ", "\n", "\n\n", "  spaces  ", "What is 2 + 2?", "4.", "caf\u00e9", "\u4f60\u597d", "\U0001f600", "<think>\nhm\n</think>\n\nyes", "'", '"',
          "{{ x }}", "{% if %}", "<|im_end|>", "<tool_response>a</tool_response>", "\t", "\u00a0", "a\\b", "\x01", "[/INST]", ""]


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    found.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    found.globals["raise_exception"] = refuse
    return found


def content(rng):
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 5)))


def conversation(rng):
    messages = [{"role": "system", "content": content(rng)}] if rng.random() < 0.4 else []
    for i in range(rng.randint(1, 6)):
        role = "user" if i % 2 == 0 else "assistant"
        if rng.random() < 0.05:
            role = rng.choice(["user", "assistant", "tool", "system", "robot"])
        message = {"role": role, "content": content(rng)}
        if role == "assistant" and rng.random() < 0.1:
            message["calls"] = [{"name": "f", "arguments": rng.choice(["{}", {"x": [1, 2.5, None, True], "y": content(rng)}])}]
        if rng.random() < 0.02:
            message["content"] = None
        messages.append(message)
    line = {"messages": messages}
    if rng.random() < 0.2:
        line["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"n": 1e-7, "m": -3}}}]
    if rng.random() < 0.1:
        line["enable_thinking"] = False
    return line


def theirs(template, line, prompt):
    try:
        return template.render(**line, bos_token="<s>", eos_token="</s>", add_generation_prompt=prompt)
    except Exception as error:
        return error


def main():
    program, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    gpt2(["a"], 260).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    for path in sorted(TEMPLATES.glob("*.jinja")):
        template = environment().from_string(path.read_text())
        ours = subprocess.Popen([program, str(path), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        rng, refused, answers = random.Random(5), 0, 0
        for _ in range(count):
            line = conversation(rng)
            ours.stdin.write(json.dumps(line) + "\n")
            ours.stdin.flush()
            got = json.loads(ours.stdout.readline())
            want = theirs(template, line, False), theirs(template, line, True)
            bad = [w for w in want if isinstance(w, Exception)]
            if bad or "error" in got:
                if not bad or "error" not in got:
                    sys.exit(f"{path.name}: {json.dumps(line)}: theirs {want}, ours {got}")
                if isinstance(bad[0], jinja2.exceptions.TemplateError) and not isinstance(bad[0], jinja2.UndefinedError) \
                        and str(bad[0]) not in got["error"]:
                    sys.exit(f"{path.name}: theirs says {bad[0]}, ours {got['error']}")
                refused += 1
                continue
            if (got["text"], got["prompt"]) != want:
                sys.exit(f"{path.name}: {json.dumps(line)}:\ntheirs {want}\nours   {got}")
            data = want[0].encode()
            spoken = [m["content"] for m in line["messages"] if m["role"] == "assistant"]
            for (begin, end) in got["answers"]:
                answers += 1
                said = data[begin:end].decode()
                if not any((c or "").strip() in said for c in spoken) and path.name in ("chatml.jinja", "llama3.jinja", "zephyr.jinja"):
                    sys.exit(f"{path.name}: {json.dumps(line)}: {said!r} is no answer")
        print(f"{path.name}: {count} conversations, {refused} refused by both, {answers} answers: the same")


if __name__ == "__main__":
    main()
