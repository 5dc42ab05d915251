#!/usr/bin/env python3
"""Makes small tokenizers and chat templates of every family, and goldens that transformers computes with them:
tests/text/golden/families*.

Made with transformers 5.23.0, tokenizers 0.23.3, jinja2 3.1.6, Python 3.11. The build does not run it. This command
gives the same bytes each time:

    HF_HUB_OFFLINE=1 python tests/text/make_family_goldens.py

Each family gets the pipeline that its class in transformers builds (LlamaTokenizer, GemmaTokenizer, Qwen2Tokenizer,
GPT2Tokenizer) or, where transformers reads tokenizer.json as it is (TokenizersBackend), the pipeline of the published
files. The vocabulary is trained on TEXT. The files are what save_pretrained wrote, and the goldens come from
AutoTokenizer, which is given the family's model_type as in a checkpoint.
"""

import datetime
import json
import pathlib
import random
import re
import shutil
import tempfile

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    Qwen2Tokenizer,
    TokenizersBackend,
)

golden = pathlib.Path(__file__).resolve().parent / "golden"

TEXT = """The draft proposes some tokens and the target verifies them in one pass; what it keeps is exactly what it would have said itself.
A gate measures how often they agree. When the answers of the day change, the draft grows stale and is distilled again overnight.
I'm sure they've seen it, we'll see what you'd do, he's right and don't worry: it's 3 of 12, 45% of 1234567, or 2024-05-17 at 09:30.
def accept(p, q):\n    return min(1.0, p / q)\n\nfor i in range(10):\n    if accept(0.5, i):\n        print("token", i)\n
Größe, naïve façade, Ærøskøbing; привет, мир; 你好，世界。こんにちは 世界; مرحبا بالعالم; 안녕하세요. 🙂 👍 🎉 hello tokens hello tokens hellotokens hellotokens hellotokens hellotokens
<b>bold</b> {"key": [1, 2, 3], "value": null} https://example.org/path?query=1&other=2 C:\\\\temp user@example.org #tag $5.00 ... !!! ???
the cat sat on the mat and the rat ran after the cat, then the other cat and the other rat sat there together in the water."""

LONG_WORD = ("hellotokens" * 182)[:2000]
TEXTS = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n\n",
    "\t",
    " \t ",
    "\r\n",
    "\r",
    "a",
    " a",
    "a ",
    " a ",
    "  a  ",
    "   a   b    c     ",
    "hello",
    " hello",
    "Hello world",
    "hello\nworld",
    "hello \n world",
    "hello\n\n  world\n",
    "\thello\t\tworld\t",
    "line\r\nline\r\n\r\n",
    "a\u00a0b\u2003c\u3000d",
    "I'm you're we'll they've he'd it's don't",
    "I'M YOU'RE WE'LL THEY'VE",
    "'s 's' ''s",
    "0 12 345 6789 01234567890",
    "3.14159 1,000,000 1e-9 ²³¼ ٣٤٥ 五",
    "a1b22c333d4444",
    "def f(x):\n    return x + 1\n\n\n\tpass",
    "x=1;;;y==2!=3<=4>=5&&6||7",
    "https://example.org/a?b=c&d=e#f",
    '<b>bold</b> & "quoted" \\n',
    "你好，世界。",
    "こんにちは世界",
    "안녕하세요 세계",
    "漢字 and English 混合",
    "مرحبا بالعالم ١٢٣",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "🙂",
    "a🙂b 🙂🙂",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️",
    "caf\u00e9 na\u00efve \u00c5",
    "cafe\u0301 nai\u0308ve A\u030a",
    "\u1e9b\u0323 \ufb01 \u2126 \u212b \uac01 \u1100\u1161\u11a8",
    "Z\u0351\u036b\u0343a\u0325l\u0334g\u0321o",
    "a\ufffdb",
    "\ufffd",
    "\ufffd\ufffd ",
    "\ue000\uf8ff\U000f0000",
    "a\u200bb\u200cc\u200dd\ufeffe\u2060",
    "\ufeffbom",
    "\u0000\u0001\u001f\u007f\u0085",
    "\u2028\u2029",
    "▁",
    "▁▁a ▁b",
    "a▁b",
    "<0x41><0xE4>",
    "Ġ Ċ ĉ",
    "\U0001d4d0\U00020000\U0010ffff",
    "ÿþ ßẞ ŉ ı İ",
    "?!.,;:-–—…",
    "a,b.c!d?e:f",
    "tokens tokens tokens  tokens",
    "TheTargetVerifiesDRAFTTokens",
    "snake_case camelCase kebab-case",
    "<s></s><unk><pad>",
    "<|endoftext|>x<|im_end|>",
    " the  the   the",
    LONG_WORD,
]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
O200K = (
    "|".join(r"[^\r\n\p{L}\p{N}]?" + w + r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for w in (CASED, CAPITALS))
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    "|".join(r"[^\r\n\p{L}\p{N}]?" + w for w in (CASED, CAPITALS))
    + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def special(text, **flags):
    return AddedToken(text, **({"special": True, "normalized": False} | flags))


def byte_level(
    pattern=None, behavior="isolated", invert=False, normalizer=None, digits=False, ignore_merges=False, size=470
):
    """Returns a trained tokenizer over bytes. Without a pattern it uses GPT-2's own."""
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    first = [pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)] if pattern else []
    first += [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    t.pre_tokenizer = pre_tokenizers.Sequence(
        first + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)]
    )
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
        ),
    )
    return t


def parts_of(t):
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]]


def pieces(first, size=330):
    """Returns vocabulary and merges over characters, like those of SentencePiece's BPE: the tokens of `first`, 256 byte
    tokens, two tokens of several spaces, and then the trained tokens."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.train_from_iterator([TEXT.replace("\n", " ")], trainers.BpeTrainer(vocab_size=size, show_progress=False))
    vocab, merges = parts_of(t)
    names = list(first) + [f"<0x{b:02X}>" for b in range(256)] + ["▁▁", "▁▁▁▁"] + list(vocab)
    merges = [("▁", "▁"), ("▁▁", "▁▁")] + merges
    return {name: i for i, name in enumerate(dict.fromkeys(names))}, merges


def template(t, *tokens):
    """Sets the post-processor that puts `tokens` before a text."""
    t.post_processor = processors.TemplateProcessing(
        single=" ".join(tokens) + " $A",
        pair=" ".join(tokens) + " $A $B",
        special_tokens=[(x, t.token_to_id(x)) for x in tokens],
    )


def backend(t, tokens, **names):
    t.add_special_tokens([x for x in tokens if x.special])
    t.add_tokens([x for x in tokens if not x.special])
    return TokenizersBackend(tokenizer_object=t, **names)


def prepending(tokens, **names):
    """Returns the layout of Llama 2, Mistral 0.1, Mixtral and Phi-3 as published, where a normalizer prepends a space
    to every piece of text."""
    vocab, merges = pieces(["<unk>", "<s>", "</s>"])
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return t, [special("<unk>"), special("<s>")] + tokens, {"unk_token": "<unk>", "bos_token": "<s>"} | names


def llama2():
    vocab, merges = pieces(["<unk>", "<s>", "</s>"])
    t = LlamaTokenizer(vocab=vocab, merges=merges)
    template(t.backend_tokenizer, "<s>")
    return t


def llama2_published():
    t, tokens, names = prepending([special("</s>")], eos_token="</s>")
    t.add_special_tokens(tokens)
    template(t, "<s>")
    return backend(t, tokens, **names)


def llama3():
    t = byte_level(LLAMA3, ignore_merges=True)
    tokens = [
        special(f"<|{x}|>") for x in ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id")
    ]
    out = backend(t, tokens, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", clean_up_tokenization_spaces=True)
    template(t, "<|begin_of_text|>")
    out.backend_tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), t.post_processor]
    )
    return out


def smollm():
    return backend(
        byte_level(digits=True),
        [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )


def mistral():
    control = ["[INST]", "[/INST]", "[TOOL_CALLS]"]
    vocab, merges = pieces(["<unk>", "<s>", "</s>"] + control)
    t = LlamaTokenizer(vocab=vocab, merges=merges, extra_special_tokens=control)
    template(t.backend_tokenizer, "<s>")
    return t


def mistral_nemo():
    t = byte_level(TEKKEN, ignore_merges=True)
    tokens = [special(x) for x in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>")]
    t.add_special_tokens(tokens)
    template(t, "<s>")
    return backend(t, tokens, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def mixtral():
    t, tokens, names = prepending([special("</s>")], eos_token="</s>")
    t.add_special_tokens(tokens)
    template(t, "<s>")
    return backend(t, tokens, **names)


def qwen(*plain):
    vocab, merges = parts_of(byte_level(LLAMA3.replace("{1,3}", ""), normalizer=normalizers.NFC()))
    t = Qwen2Tokenizer(
        vocab=vocab, merges=merges, eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    t.add_tokens([AddedToken(x, special=False, normalized=False) for x in plain])
    return t


def gemma(*more):
    turns = ["<start_of_turn>", "<end_of_turn>"]
    vocab, merges = pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *turns, *more, "\n", "\n\n", "<table>"])
    t = GemmaTokenizer(vocab=vocab, merges=merges, extra_special_tokens=turns + list(more))
    t.add_tokens([AddedToken(x, special=False, normalized=False) for x in ("\n\n", "▁▁▁▁", "<table>")])
    template(t.backend_tokenizer, "<bos>")
    return t


def phi3():
    roles = [special(f"<|{x}|>", rstrip=True) for x in ("assistant", "system", "end", "user")]
    t, tokens, names = prepending(
        [AddedToken("</s>", special=False, normalized=False, rstrip=True), special("<|endoftext|>"), *roles]
    )
    return backend(t, tokens, eos_token="<|endoftext|>", pad_token="<|endoftext|>", **names)


def phi4():
    t = byte_level(LLAMA3, behavior="removed", invert=True)
    tokens = [special("<|endoftext|>", lstrip=True, rstrip=True)] + [
        special(f"<|im_{x}|>", lstrip=True, rstrip=True) for x in ("start", "sep", "end")
    ]
    return backend(t, tokens, bos_token="<|endoftext|>", eos_token="<|im_end|>", unk_token="<|endoftext|>")


def phi4_mini():
    tokens = [special("<|endoftext|>")] + [
        special(f"<|{x}|>", rstrip=True) for x in ("assistant", "end", "user", "system")
    ]
    tokens += [AddedToken(f"<|{x}|>", special=False, normalized=False, rstrip=True) for x in ("tool", "/tool")]
    return backend(
        byte_level(O200K), tokens, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )


def smollm3():
    t = byte_level(LLAMA3, ignore_merges=True)
    tokens = [special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|im_start|>"), special("<|im_end|>")]
    tokens += [AddedToken(x, special=False, normalized=False) for x in ("<think>", "</think>")]
    t.add_special_tokens(tokens[:4])
    template(t, "<|begin_of_text|>")
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), t.post_processor])
    return backend(t, tokens, eos_token="<|im_end|>", pad_token="<|im_end|>", clean_up_tokenization_spaces=True)


def olmo2():
    vocab, merges = parts_of(byte_level(LLAMA3, behavior="removed", invert=True))
    names = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    pattern = pre_tokenizers.Split(Regex(LLAMA3), behavior="removed", invert=True)
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    t.decoder, t.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    tokens = [special(x) for x in names] + [AddedToken("|||IP_ADDRESS|||", special=False, normalized=True)]
    return backend(
        t, tokens, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>", pad_token="<|pad|>"
    )


def gpt2():
    vocab, merges = parts_of(byte_level())
    return GPT2Tokenizer(vocab=vocab | {"<|endoftext|>": len(vocab)}, merges=merges)


# Chat templates written for these tests, with the same structure as those of the families.
INST = """{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate, beginning with the user') }}{% endif %}"""
IM = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"""
IM_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
GEMMA_TURNS = """{%- for m in loop_messages -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Turns must alternate between user and assistant") }}{%- endif -%}
    {{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + (first if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""
QWEN3 = """{%- for m in messages %}
    {%- set text = m.content %}
    {%- if m.role == 'assistant' and '</think>' in text %}
        {%- set thought = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- if loop.last %}{%- set text = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + text %}{%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
TEMPLATES = {
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set intro = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}\
{% else %}{% set rest = messages %}{% set intro = '' %}{% endif %}{% for m in rest %}{% if m['role'] == 'user' %}\
{{ bos_token + '[INST] ' + (intro if loop.first else '') + m['content'].strip() + ' [/INST]' }}{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "llama3": """{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = strftime_now('%Y-%m-%d') %}{%- endif %}
{%- if messages[0].role == 'system' %}{%- set about = messages[0].content | trim %}{%- set messages = messages[1:] %}{%- else %}{%- set about = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{- 'Today: ' + date_string + '\\n\\n' + about + '<|eot_id|>' }}
{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    "smollm": IM + IM_PROMPT,
    "mistral": INST
    + "{{ '[INST] ' + m.content + '[/INST]' if m.role == 'user' else ' ' + m.content | trim + eos_token }}{% endfor %}",
    "mistral_nemo": INST
    + "{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "mixtral": INST
    + """{% if m.role == 'user' %}{{ ' [INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}\
{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}""",
    "qwen2": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    + IM
    + IM_PROMPT,
    "qwen3": QWEN3,
    "gemma2": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{%- set loop_messages = messages -%}{%- set first = '' -%}" + GEMMA_TURNS,
    "gemma3": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0]['content'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set loop_messages = messages -%}{%- endif -%}"""
    + GEMMA_TURNS,
    "phi3": "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "phi4": "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    "phi4_mini": "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    "smollm3": """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- if messages[0].role == 'system' -%}{%- set about = messages[0].content -%}{%- else -%}{%- set about = '' -%}{%- endif -%}
{%- if about.endswith('/no_think') -%}{%- set enable_thinking = false -%}{%- endif -%}
{%- set today = date_string if date_string is defined else strftime_now('%Y-%m-%d') -%}
{{- '<|im_start|>system\n## Metadata\n\nToday Date: ' ~ today ~ '\nReasoning Mode: ' ~ ('/think' if enable_thinking else '/no_think') ~ '\n\n' -}}
{{- about.replace('/no_think', '').rstrip() ~ '<|im_end|>\n' -}}
{%- for m in messages if m.role != 'system' -%}
    {{- '<|im_start|>' + m.role + '\n' + (m.content.lstrip('\n') if m.role == 'user' or enable_thinking else '<think>\n\n</think>\n' + m.content) + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' ~ ('' if enable_thinking else '<think>\n\n</think>\n') }}{%- endif -%}""",
    "olmo2": """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ '<|system|>\\n' + m['content'] + '\\n' }}\
{% elif m['role'] == 'user' %}{{ '<|user|>\\n' + m['content'] + '\\n' }}{% elif not loop.last %}{{ '<|assistant|>\\n' + m['content'] + eos_token + '\\n' }}\
{% else %}{{ '<|assistant|>\\n' + m['content'] + eos_token }}{% endif %}\
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}""",
}

# name: (model_type in config.json, tokenizer, sets of variables for the chat template besides the empty set)
FAMILIES = {
    "llama2": ("llama", llama2, []),
    "llama2_published": ("llama", llama2_published, []),
    "llama3": ("llama", llama3, [{"date_string": "2024-05-17"}]),
    "smollm": ("llama", smollm, []),
    "gpt2": ("gpt2", gpt2, []),
    "disagreeing": ("llama", smollm, []),
    "disagreeing_names": ("llama", smollm, []),
    "mistral": ("mistral", mistral, []),
    "mistral_nemo": ("mistral", mistral_nemo, []),
    "mixtral": ("mixtral", mixtral, []),
    "qwen2": ("qwen2", lambda: qwen(), []),
    "qwen3": (
        "qwen3",
        lambda: qwen("<think>", "</think>", "<tool_call>"),
        [{"enable_thinking": False}, {"enable_thinking": True}],
    ),
    "gemma2": ("gemma2", lambda: gemma(), []),
    "gemma3": ("gemma3_text", lambda: gemma("<start_of_image>"), []),
    "phi3": ("phi3", phi3, []),
    "phi4": ("phi3", phi4, []),
    "phi4_mini": ("phi3", phi4_mini, []),
    "smollm3": (
        "smollm3",
        smollm3,
        [{"date_string": "2024-05-17"}, {"date_string": "2024-05-17", "enable_thinking": False}],
    ),
    "olmo2": ("olmo2", olmo2, []),
}


def disagree_in_names(tokenizer, config):
    """Makes the configuration contradict tokenizer.json about special tokens, BOS and EOS, as after careless
    fine-tuning."""
    for token in tokenizer["added_tokens"]:
        token["special"] = token["content"] == "<|endoftext|>"
    config |= {
        "add_bos_token": True,
        "add_eos_token": True,
        "pad_token": "[PAD]",
        "additional_special_tokens": ["<new>"],
    }


def disagree(tokenizer, config):
    """Does the same as disagree_in_names, but with added_tokens_decoder instead of additional_special_tokens."""
    disagree_in_names(tokenizer, config)
    del config["additional_special_tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    config["added_tokens_decoder"] = {
        "470": flags | {"content": "<|endoftext|>", "lstrip": True, "rstrip": True},
        "600": flags | {"content": "<later>", "special": False},
        "472": flags | {"content": "<|im_end|>", "special": False},
        "473": flags | {"content": "<more>", "rstrip": True},
        "300": flags | {"content": "the", "single_word": True, "special": False},
    }
    config |= {
        "mask_token": "[MASK]",
        "image_token": "<image>",
        "cls_token": "[CLS]",
        "extra_special_tokens": ["<new>", "<|im_start|>", "<later>"],
    }
    config["pad_token"] = flags | {"content": "[PAD]", "lstrip": True, "__type": "AddedToken"}


# Properties of published files that save_pretrained would not write.
EDITS = {
    "llama2_published": lambda tokenizer, config: config.update(tokenizer_class="LlamaTokenizer"),
    "disagreeing": disagree,
    "disagreeing_names": disagree_in_names,
}


def save(name, tokenizer):
    """Writes what save_pretrained writes, with the family's EDITS and without white space. Returns the folder."""
    folder = golden / "families" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer.chat_template = TEMPLATES.get(name)
    with tempfile.TemporaryDirectory() as written:
        tokenizer.save_pretrained(written)
        files = {file.name: file.read_text() for file in pathlib.Path(written).iterdir()}
    parsed = {file: json.loads(text) for file, text in files.items() if file.endswith(".json")}
    EDITS.get(name, lambda *_: None)(parsed["tokenizer.json"], parsed["tokenizer_config.json"])
    for file, text in files.items():
        (folder / file).write_text(compact(parsed[file]) + "\n" if file in parsed else text)
    return folder


def own_texts(tokenizer, rng):
    """Returns texts with the added tokens of the tokenizer at different places, and random mixtures of both."""
    added = [str(t) for _, t in sorted(tokenizer.added_tokens_decoder.items())]
    texts = []
    for token in added:
        texts += [f"a {token} b", f"x{token}y", f" {token}  {token}\n{token}\n\n z", token]
    pool = added + [
        "the",
        " token",
        "draft",
        " ",
        "  ",
        "\n",
        "\t",
        "é",
        "e\u0301",
        "漢",
        "🙂",
        "\u200d",
        "'s",
        "12",
        "3456",
        "A",
        "؟",
        "\ufffd",
        ".",
        "--",
        "ß",
        "▁",
    ]
    return texts + ["".join(rng.choice(pool) for _ in range(rng.randrange(2, 14))) for _ in range(24)]


def encodings(tokenizer, texts):
    """Returns a row for each text. `ids` has no special tokens; `before` has the special tokens put before the text.
    `text` and `whole` are the ids decoded without and with special tokens, given only if they differ from the input."""
    out = []
    for text in texts:
        ids, full = tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer(text)["input_ids"]
        row = {"ids": ids}
        if before := full[: len(full) - len(ids)]:
            row["before"] = before
        assert before + ids == full, (text, ids, full)
        for key, skip in (("text", True), ("whole", False)):
            if (decoded := tokenizer.decode(full, skip_special_tokens=skip)) != text:
                row[key] = decoded
        out.append(row)
    return out


def decodings(tokenizer, rng):
    """Returns decodings of random ids, as a model may produce them, including sequences that no text encodes to. Byte
    tokens and special tokens are frequent."""
    often = sorted(i for t, i in tokenizer.get_vocab().items() if t.startswith("<0x") or not t.isascii()) + sorted(
        tokenizer.added_tokens_decoder
    )
    rows = []
    for i in range(40):
        ids = [rng.choice(often) if rng.random() < i / 40 else rng.randrange(len(tokenizer)) for _ in range(16)]
        rows.append(
            {
                "ids": ids,
                "text": tokenizer.decode(ids, skip_special_tokens=True),
                "whole": tokenizer.decode(ids, skip_special_tokens=False),
            }
        )
    return rows


def chats(tokenizer, conversations, variables):
    """Returns a row for each rendering of a conversation, with the text and its ids, or with the error. If a text
    contains today's date, the date is replaced by {{TODAY}} and the row has no ids."""
    today = datetime.date.today().isoformat()
    rows = []
    for extra in [{}] + variables:
        for conversation, messages in conversations.items():
            for prompt in (False, True):
                row = {"conversation": conversation, "add_generation_prompt": prompt} | (
                    {"extra": extra} if extra else {}
                )
                try:
                    text = tokenizer.apply_chat_template(
                        messages, tokenize=False, add_generation_prompt=prompt, **extra
                    )
                    row["text"] = text.replace(today, "{{TODAY}}")
                    if row["text"] == text:
                        row["ids"] = tokenizer.apply_chat_template(
                            messages, add_generation_prompt=prompt, return_dict=False, **extra
                        )
                except Exception as error:
                    row["error"] = str(error)
                rows.append(row)
    return rows


def check_rebuilt(rebuilt, as_is, texts):
    """LlamaTokenizer builds its own pipeline instead of reading the file's. Checks that the results of the two
    pipelines differ where docs/models.md says so, and only there."""
    differing = [text for text in texts if encodings(rebuilt, [text]) != encodings(as_is, [text])]
    special = "<unk>|<s>|</s>"
    assert type(rebuilt) is LlamaTokenizer and differing == [
        t for t in texts if re.search(f"^[ ▁]|({special})(?!{special}|$)", t)
    ]
    print(f"{len(differing)} of {len(texts)} texts differ between LlamaTokenizer and the published file as it is")


def main():
    assert transformers.__version__ == "5.23.0", transformers.__version__
    conversations = json.loads((golden / "chat_templates.json").read_text())["conversations"]
    out = {
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "texts": TEXTS,
        "families": {},
    }
    shutil.rmtree(golden / "families", ignore_errors=True)
    for name, (model_type, make, variables) in FAMILIES.items():
        folder = save(name, make())
        tokenizer = AutoTokenizer.from_pretrained(folder, config=AutoConfig.for_model(model_type))
        rng = random.Random(name)
        own = own_texts(tokenizer, rng)
        if name == "llama2_published":
            rebuilt, tokenizer = tokenizer, TokenizersBackend.from_pretrained(folder)
            check_rebuilt(rebuilt, tokenizer, TEXTS + own)
        row = {
            "model_type": model_type,
            "class": type(tokenizer).__name__,
            "texts": own,
            "encodings": encodings(tokenizer, TEXTS + own),
            "decodings": decodings(tokenizer, rng),
            "chats": chats(tokenizer, conversations, variables) if name in TEMPLATES else [],
        }
        out["families"][name] = row
        print(
            f"{name:17} {row['class']:18} {len(tokenizer):4} tokens {len(row['encodings'])} texts {len(row['chats'])} chats"
        )
    families = [f"{json.dumps(k)}:{compact(v)}" for k, v in out.pop("families").items()]
    (golden / "families.json").write_text(compact(out)[:-1] + ',"families":{\n' + ",\n".join(families) + "\n}}\n")


main()
