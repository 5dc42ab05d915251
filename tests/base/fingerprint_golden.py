"""Recomputes the digests that fingerprint_test.cpp expects, from the description in base/fingerprint.h alone, with
Python 3.11 and its standard library: python3 tests/base/fingerprint_golden.py"""

import hashlib
import json

MASK = (1 << 32) - 1


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def below(seed, stream, index, n):
    r = philox([index & MASK, index >> 32, stream & MASK, stream >> 32], [seed & MASK, seed >> 32])
    return int((((r[0] << 32 | r[1]) >> 11) + 0.5) * 2.0**-53 * n)


def sha(data):
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# This is the model that write_tiny_model() in tests/base/scratch.h writes by default.
vocab, hidden = 320, 32
config = {
    "config.json": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "torch_dtype": "float32",
    },
    "generation_config.json": {"eos_token_id": 2},
}
shapes = sorted(
    {
        "model.embed_tokens.weight": [vocab, hidden],
        "model.norm.weight": [hidden],
        "model.layers.0.mlp.down_proj.weight": [hidden, hidden],
    }.items()
)
weights = hashlib.sha256()
for number, (name, shape) in enumerate(shapes):
    size = 4
    for d in shape:
        size *= d
    data = bytes(0x3C if i % 4 == 3 else (i * 7 + i // 251 + number) & 255 for i in range(size))
    weights.update(name.encode() + b"\0")
    if size <= 16384:
        weights.update(data)
    else:
        for i in range(4):
            at = below(0x73706563646563, int(sha(name)[:16], 16), i, size - 4096 + 1)
            weights.update(data[at : at + 4096])
tiers = {
    "config": sha(canonical(config)),
    "tokenizer": sha(
        canonical(
            {
                "tokenizer": sha('{"version": "1.0", "model": {"vocab": {"a": 0}}}'),
                "chat_template": "sha256:" + sha("{{ messages }}"),
                "bos_token": "<s>",
                "eos_token": "</s>",
            }
        )
    ),
    "header": sha(canonical([[name, "F32", shape] for name, shape in shapes])),
    "weights": weights.hexdigest(),
}
tiers["id"] = sha(canonical(tiers))
print(json.dumps(tiers, indent=1))
