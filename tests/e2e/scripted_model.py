"""Writes a Llama that produces scripted texts: each token determines the next. Does not use the code under test."""

import array
import json
import struct

from tiny_model import BOS, EOS, VOCAB, byte_tokenizer

HEADS, MLP = 2, 16


def write_scripted_model(folder, scripts, template, special=()):
    """Writes a model that answers the token <x> with the list of texts scripts["x"]. Each text is one token; texts in
    `special` are special tokens. No text may occur twice."""
    texts = [text for script in scripts.values() for text in script]
    assert len(set(texts)) == len(texts), "a token has one successor"
    tokens = {text: VOCAB + i for i, text in enumerate([f"<{name}>" for name in scripts] + texts)}
    size = VOCAB + len(tokens)
    size += size % (2 * HEADS) and 2 * HEADS - size % (2 * HEADS)
    follows = {}
    for name, script in scripts.items():
        ids = [tokens[f"<{name}>"], *(tokens[text] for text in script), EOS]
        follows |= dict(zip(ids, ids[1:]))
    folder.mkdir(parents=True)
    tokenizer = byte_tokenizer()
    plain = dict(tokenizer["added_tokens"][0], special=False)
    for text, number in tokens.items():
        tokenizer["added_tokens"].append(dict(plain, id=number, content=text, special=text in special))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "torch_dtype": "float32",
                "vocab_size": size,
                "hidden_size": size,
                "intermediate_size": MLP,
                "num_hidden_layers": 1,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "head_dim": size // HEADS,
                "hidden_act": "silu",
                "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "attention_bias": False,
                "mlp_bias": False,
                "tie_word_embeddings": False,
                "bos_token_id": BOS,
                "eos_token_id": EOS,
            }
        )
    )
    write_weights(folder / "model.safetensors", size, follows)


def write_weights(file, size, follows):
    """Writes weights in which attention and MLP add nothing, so that the head maps each token to its successor."""
    identity = array.array("f", bytes(4 * size * size))
    head = array.array("f", bytes(4 * size * size))
    for token in range(size):
        identity[token * size + token] = 1
        head[follows.get(token, EOS) * size + token] = 10
    zeros = lambda count: array.array("f", bytes(4 * count))
    ones = array.array("f", [1.0] * size)
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": ((size, size), identity),
        "lm_head.weight": ((size, size), head),
        "model.norm.weight": ((size,), ones),
        **{layer + f"{p}_layernorm.weight": ((size,), ones) for p in ("input", "post_attention")},
        **{layer + f"self_attn.{p}_proj.weight": ((size, size), zeros(size * size)) for p in "qkvo"},
        **{layer + f"mlp.{p}_proj.weight": ((MLP, size), zeros(MLP * size)) for p in ("gate", "up")},
        layer + "mlp.down_proj.weight": ((size, MLP), zeros(MLP * size)),
    }
    header, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
