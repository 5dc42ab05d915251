#!/usr/bin/env python3
"""Makes golden/: tiny random Llama models, their logits, and training references. Pinned: transformers 5.23.0, torch
2.11.0.

    python make_goldens.py                 writes golden/ beside this file (deterministic on one machine)
    python make_goldens.py --stories DIR   also writes stories260k_greedy.json from the model in DIR
                                           (shared/data/models/stories260K)

golden/<case>/                   config.json, model.safetensors: a Hugging Face directory
golden/<case>.safetensors        tokens [B, S] int64, positions [B, S] int64, logits [B, S, V] fp32
golden/train_<loss>.safetensors  loss is ce or kl. tokens [B, S] int64, teacher_logits [B, S, V] fp32, init.<name>,
                                 loss [10] fp32 (before each step), grad.<name> (of the first step), after10.<name>;
                                 names as in model.safetensors. Metadata: "config" is config.json, "adamw" has the
                                 hyper-parameters.

Every training step sees the same batch. ce is the mean over positions 0..S-2 of -log q(next token). kl is the mean over
positions 0..S-1 of Σ p log(p / q), with p = softmax(teacher_logits). The optimiser is torch.optim.AdamW, with weight
decay on every parameter ("decay": "all") or on matrices only ("decay": "matrices", whose results are under
after10_matrices.<name>).
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

here = Path(__file__).resolve().parent / "golden"
base = dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=44,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    attn_implementation="eager",
)
llama3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
cases = {
    "gqa_untied": dict(),
    "tied_wide_heads": dict(tie_word_embeddings=True, head_dim=12, num_key_value_heads=4),
    "llama3_rope": dict(rope_parameters=llama3, head_dim=16, max_position_embeddings=512),
    "biases": dict(attention_bias=True, mlp_bias=True, num_key_value_heads=1),
    "bf16": dict(dtype="bfloat16"),
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--stories", type=Path)
arguments = parser.parse_args()
torch.set_num_threads(1)  # fixes the order of summation


def random_model(seed, scale=0.3, **overrides):
    """Returns a model with large weights, so that attention is peaked and logits are of order 1. In bf16 the weights
    are smaller, because large ones would amplify rounding."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**base, **overrides})).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(
                1 + 0.2 * torch.randn_like(p)
                if name.endswith("norm.weight")
                else torch.randn_like(p) * (scale if p.dim() == 2 else 0.2)
            )
    return model


def make_case(name, overrides, seed):
    dtype = getattr(torch, overrides.get("dtype", "float32"))
    model = random_model(seed, 0.3 if dtype == torch.float32 else 0.12, **overrides).to(dtype)
    shutil.rmtree(here / name, ignore_errors=True)
    model.save_pretrained(here / name)
    (here / name / "generation_config.json").unlink(missing_ok=True)
    length = 40
    tokens = torch.randint(0, base["vocab_size"], (2, length))
    # The second row starts near the end of the trained context, or, for llama3, beyond the original context of the RoPE
    # scaling.
    starts = torch.tensor([[0], [50 if "llama3" not in name else 300]])
    positions = starts + torch.arange(length)
    with torch.no_grad():
        logits = model(tokens, position_ids=positions).logits.float()
    save_file({"tokens": tokens, "positions": positions, "logits": logits}, here / f"{name}.safetensors")
    print(name, "largest logit", logits.abs().max().item())


def make_training(loss_name, seed):
    settings = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    overrides = dict(vocab_size=40, hidden_size=16, intermediate_size=28, head_dim=6)
    tensors, steps = {}, 10
    for decay in ("all", "matrices"):
        model = random_model(seed, **overrides).train()
        names = [n for n, _ in model.named_parameters()]
        torch.manual_seed(seed + 1)
        tokens = torch.randint(0, 40, (2, 17))
        teacher = torch.randn(2, 17, 40) * 2
        if decay == "all":
            groups = list(model.parameters())
            tensors |= {"tokens": tokens, "teacher_logits": teacher} | {
                f"init.{n}": p.detach().clone() for n, p in model.named_parameters()
            }
        else:
            groups = [
                {"params": [p for p in model.parameters() if p.dim() >= 2]},
                {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
            ]
        optimizer, losses = torch.optim.AdamW(groups, **settings), []
        for step in range(steps):
            log_q = model(tokens).logits.log_softmax(-1)
            if loss_name == "ce":
                loss = -log_q[:, :-1].gather(-1, tokens[:, 1:, None]).mean()
            else:
                log_p = teacher.log_softmax(-1)
                loss = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.detach())
            if step == 0 and decay == "all":
                tensors |= {f"grad.{n}": p.grad.clone() for n, p in model.named_parameters()}
            optimizer.step()
        if decay == "all":
            tensors["loss"] = torch.stack(losses)
        tag = "after10" if decay == "all" else "after10_matrices"
        tensors |= {f"{tag}.{n}": p.detach().clone() for n, p in model.named_parameters()}
    adamw = dict(settings, betas=list(settings["betas"]), clip=0, steps=steps, decay="all")
    metadata = {"format": "pt", "config": json.dumps(model.config.to_dict()), "adamw": json.dumps(adamw)}
    save_file(
        {k: v.contiguous() for k, v in tensors.items()}, here / f"train_{loss_name}.safetensors", metadata=metadata
    )
    print(loss_name, [round(x.item(), 4) for x in losses], names[:2])


def make_stories(directory):
    """Writes the 256 greedy tokens after BOS, and checks that they are the text that llama2.c documents."""
    from transformers import AutoTokenizer

    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.tensor([[1]])
    with torch.no_grad():
        for _ in range(256):
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    text = AutoTokenizer.from_pretrained(directory).decode(ids[0, 1:])
    documented = (directory.parents[1] / "stories260K/doc_stories260K.md").read_text()
    assert text.replace("<s>", "").strip() in documented, text
    (here / "stories260k_greedy.json").write_text(json.dumps(ids[0].tolist()) + "\n")


here.mkdir(exist_ok=True)
for i, (name, overrides) in enumerate(cases.items()):
    make_case(name, overrides, seed=100 + i)
make_training("ce", 7)
make_training("kl", 8)
if arguments.stories:
    make_stories(arguments.stories)
