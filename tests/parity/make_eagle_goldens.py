#!/usr/bin/env python3
"""Makes training references for EAGLE-3 heads with the speculators package. Pinned: speculators 0.7.0.2 (installed with
--no-deps, beside loguru 0.7.3 and pydantic-settings), transformers 5.23.0, torch 2.11.0.

    python make_eagle_goldens.py           writes golden/eagle_* beside this file (deterministic on one machine)

golden/eagle_target/              config.json, model.safetensors: a random Llama model of 8 layers
golden/eagle_<case>.safetensors   tokens [B, S] int64, learnt [B, S] int64 (1: the token is learnt), kept [D] int64
                                  (ids of the rows of lm_head), init.<name>, loss [10] fp32 (before each step),
                                  grad.<name> (of the first step), after10.<name>; names as in the plain layout of a
                                  head. Metadata: "config" is config.json of the plain layout, "training" has the
                                  hyper-parameters.

Every training step sees the same batch. The package packs the rows of a batch into one sequence. In the package, a
position counts in the loss according to the mask of the token before the predicted token. Here the mask is shifted, so
that the mask of the predicted token decides. Rows begin with a prompt that is longer than the number of steps, because
the package lets the last rows of one document predict the first tokens of the next. lm_head is trained here; the
package freezes it.

attn_implementation is sdpa: with "eager" the package (0.7.0.2) pads an additive mask with zeros, so that in every later
step all keys of the earlier steps are visible.
"""

import json
import shutil
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

sys.modules["datasets"] = types.ModuleType("datasets")  # an empty stand-in for a package that is not needed
sys.modules["datasets"].load_from_disk = None
from speculators.config import SpeculatorsConfig, VerifierConfig  # noqa: E402
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig  # noqa: E402
from speculators.models.metrics import resolve_loss_config  # noqa: E402
from speculators.proposals.greedy import GreedyTokenProposalConfig  # noqa: E402

here = Path(__file__).resolve().parent / "golden"
shape = dict(
    vocab_size=48,
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)
llama3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
layers, taps, length, prompt = 8, [2, 4, 5], 18, 6
cases = {
    "plain": dict(loss="kl_div", our_loss="kl", ttt_steps=4, decay=0.8, reduced=True),
    "all_norms": dict(
        loss="nla",
        our_loss="nla",
        ttt_steps=3,
        decay=0.8,
        rope=llama3,
        flags=dict(norm_before_residual=True, fc_norm=True, norm_output=True),
    ),
    "norm_before_fc": dict(loss="jsd", our_loss="jsd", ttt_steps=3, decay=1.0, flags=dict(norm_before_fc=True)),
}
torch.set_num_threads(1)  # fixes the order of summation


def randomise(model, seed, scale=0.3):
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(1 + 0.2 * torch.randn_like(p) if p.dim() == 1 else torch.randn_like(p) * scale)
    return model


def plain_name(name):
    return name.replace("layers.0.", "midlayer.")


def make_case(name, case, target, seed):
    rope = case.get("rope", dict(rope_type="default", rope_theta=10000.0))
    flags = dict(norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False)
    flags |= case.get("flags", {})
    layer = LlamaConfig(**shape, num_hidden_layers=1, rope_parameters=dict(rope), attn_implementation="sdpa")
    torch.manual_seed(seed)
    tokens = torch.randint(0, shape["vocab_size"], (2, length))
    learnt = (torch.rand(2, length) < 0.8).long()
    learnt[:, :prompt] = 0
    last = []
    hook = target.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
    with torch.no_grad():
        out = target(tokens, output_hidden_states=True)
    hook.remove()
    hidden = torch.cat([out.hidden_states[k] for k in taps], -1)
    # Keeps the likeliest token of every position, because specdec's KL leaves out positions whose likeliest token is
    # not kept.
    kept = torch.unique(out.logits.argmax(-1))
    others = [v for v in torch.randperm(shape["vocab_size"]).tolist() if v not in kept]
    kept = torch.sort(torch.cat([kept, torch.tensor(others[: 32 - len(kept)])]))[0]
    if not case.get("reduced"):
        kept = torch.arange(shape["vocab_size"])
    proposal = GreedyTokenProposalConfig(speculative_tokens=case["ttt_steps"])
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(kept),
        **flags,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    head = randomise(Eagle3DraftModel(config), seed)
    with torch.no_grad():
        head.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        head.verifier_norm.weight.copy_(target.model.norm.weight)
        head.verifier_lm_head.weight.copy_(target.lm_head.weight[kept])
    head.lm_head.weight.requires_grad_(True)
    head.train()
    if len(kept) < shape["vocab_size"]:
        t2d = torch.zeros(shape["vocab_size"], dtype=torch.bool)
        t2d[kept] = True
        head.load_vocab_mappings(t2d, kept - torch.arange(len(kept)))
    after_next = torch.cat([learnt[:, 2:], torch.zeros(2, 1, dtype=torch.long)], 1)
    packed = dict(
        hidden_states=hidden[:, :-1].reshape(1, -1, hidden.shape[-1]),
        input_ids=tokens[:, 1:].reshape(1, -1),
        document_ids=torch.arange(2).repeat_interleave(length - 1).unsqueeze(0),
        loss_mask=after_next.reshape(1, -1).bool(),
        position_ids=torch.arange(1, length).repeat(2).unsqueeze(0),
        verifier_last_hidden_states=last[0][:, 1:].reshape(1, -1, shape["hidden_size"]),
        ttt_steps=case["ttt_steps"],
        ttt_step_loss_decay=case["decay"],
        loss_config=resolve_loss_config(case["loss"]),
    )
    settings = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    parameters = {plain_name(n): p for n, p in head.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for p in parameters.values() if p.dim() >= 2]},
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    tensors = {"tokens": tokens, "learnt": learnt, "kept": kept}
    tensors |= {f"init.{n}": p.detach().clone() for n, p in parameters.items()}
    optimizer, losses = torch.optim.AdamW(groups, **settings), []
    for step in range(10):
        _, loss, _ = head(**packed)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            tensors |= {f"grad.{n}": p.grad.clone() for n, p in parameters.items()}
        optimizer.step()
    tensors |= {"loss": torch.stack(losses)} | {f"after10.{n}": p.detach().clone() for n, p in parameters.items()}
    plain = dict(
        shape,
        architectures=["LlamaForCausalLMEagle3"],
        model_type="llama",
        num_hidden_layers=1,
        hidden_act="silu",
        draft_vocab_size=len(kept),
        tie_word_embeddings=False,
        rope_theta=rope["rope_theta"],
        rope_parameters=rope,
        **({"rope_scaling": rope} if rope["rope_type"] != "default" else {}),
        **flags,
        eagle_config=dict(use_aux_hidden_state=True),
        torch_dtype="float32",
        dtype="float32",
    )
    training = dict(settings, betas=list(settings["betas"]), loss=case["our_loss"], ttt_steps=case["ttt_steps"])
    training["ttt_decay"] = case["decay"]
    metadata = {"format": "pt", "config": json.dumps(plain), "training": json.dumps(training)}
    save_file({k: v.contiguous() for k, v in tensors.items()}, here / f"eagle_{name}.safetensors", metadata=metadata)
    print(name, [round(x.item(), 4) for x in losses], sorted(parameters)[:3])


target_config = LlamaConfig(**shape, num_hidden_layers=layers, tie_word_embeddings=False, attn_implementation="eager")
target = randomise(LlamaForCausalLM(target_config), 300).float().eval()
shutil.rmtree(here / "eagle_target", ignore_errors=True)
target.save_pretrained(here / "eagle_target")
(here / "eagle_target" / "generation_config.json").unlink(missing_ok=True)
for i, (name, case) in enumerate(cases.items()):
    make_case(name, case, target, seed=310 + i)
