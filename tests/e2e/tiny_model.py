"""Writes a Llama of a few thousand parameters with a byte tokenizer. Does not use the code under test."""

import array
import json
import random
import struct

BOS, EOS, VOCAB = 256, 257, 258
HIDDEN, MLP, HEADS = 16, 32, 2
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>' "
    "}}{% endif %}"
)


def write_tiny_model(folder, layers, seed, context=256):
    """Writes the model. The same seed gives the same bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "torch_dtype": "float32",
                "vocab_size": VOCAB,
                "hidden_size": HIDDEN,
                "intermediate_size": MLP,
                "num_hidden_layers": layers,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "head_dim": HIDDEN // HEADS,
                "hidden_act": "silu",
                "max_position_embeddings": context,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "attention_bias": False,
                "mlp_bias": False,
                "tie_word_embeddings": True,
                "bos_token_id": BOS,
                "eos_token_id": EOS,
            }
        )
    )
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE})
    )
    write_weights(folder / "model.safetensors", layers, random.Random(seed))


# Uses GPT-2's table of printable characters that stand for bytes. The id of a token is the value of its byte.
def byte_tokenizer():
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    stand_ins = iter(range(256, 512))
    vocab = {chr(b if b in printable else next(stand_ins)): b for b in range(256)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    special = [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, text in ((BOS, "<s>"), (EOS, "</s>"))
    ]
    text, start = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}
    bos_first = {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text, text],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": bos_first,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def write_weights(file, layers, rng):
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes |= {layer + f"self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qkvo"}
        shapes |= {layer + f"mlp.{p}_proj.weight": (MLP, HIDDEN) for p in ("gate", "up")}
        shapes |= {layer + "mlp.down_proj.weight": (HIDDEN, MLP)}
        shapes |= {layer + f"{p}_layernorm.weight": (HIDDEN,) for p in ("input", "post_attention")}
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array.array("f", [1.0] * count if len(shape) == 1 else [rng.gauss(0, 0.3) for _ in range(count)])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_traffic(file, conversations, seed=1):
    rng = random.Random(seed)
    words = ["red", "green", "blue", "one", "two", "three", "up", "down"]
    text = lambda n: " ".join(rng.choice(words) for _ in range(n))
    file.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"c{i}",
                    "messages": [{"role": "user", "content": text(3)}, {"role": "assistant", "content": text(8)}],
                }
            )
            + "\n"
            for i in range(conversations)
        )
    )
