#!/usr/bin/env python3
"""Golden files of tests/distill: losses with gradients by PyTorch's autograd, ten AdamW steps by torch.optim, event files read back.

    python tests/distill/make_goldens.py        # torch 2.11.0, safetensors 0.8, numpy; writes tests/distill/golden/

losses.safetensors   draft, target [6, 37], labels [6], rows [4]; per loss and temperature: loss, acceptance, grad [6, 37]
adamw.safetensors    p0.<name>, g<step>.<name>, p10.<name>: lr 1e-2, betas .9 .95, eps 1e-8, clip 1.0, decay 0.1 on matrices only
"""
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

out = Path(__file__).resolve().parent / "golden"
out.mkdir(exist_ok=True)
torch.manual_seed(7)

draft, target = 3 * torch.randn(6, 37), 3 * torch.randn(6, 37)
target[1] = draft[1] + 0.1 * torch.randn(37)  # a row that nearly agrees
labels, rows = torch.randint(0, 37, (6,)), torch.tensor([0, 1, 3, 4])
tensors = {"draft": draft, "target": target, "labels": labels, "rows": rows}
for name in ["ce", "kl", "tv", "lk_hybrid"]:
    for temperature in [1.0, 0.7]:
        x = draft.clone().double().requires_grad_()
        log_q = (x[rows] / temperature).log_softmax(-1)
        log_p = (target[rows].double() / temperature).log_softmax(-1)
        p, q = log_p.exp(), log_q.exp()
        acceptance = torch.minimum(p, q).sum(-1).mean().detach()
        kl, tv = (p * (log_p - log_q)).sum(-1).mean(), 0.5 * (p - q).abs().sum(-1).mean()
        weight = math.exp(-3 * acceptance.item())
        loss = {"ce": -log_q[range(4), labels[rows]].mean(), "kl": kl, "tv": tv, "lk_hybrid": weight * kl + (1 - weight) * tv}[name]
        loss.backward()
        key = f"{name}.{temperature}"
        tensors |= {f"{key}.loss": loss.detach().float().reshape(1), f"{key}.acceptance": acceptance.float().reshape(1), f"{key}.grad": x.grad.float()}
save_file(tensors, out / "losses.safetensors")

parameters = {"matrix": torch.randn(5, 3), "norm": torch.ones(4)}
tensors = {f"p0.{n}": p.clone() for n, p in parameters.items()}
leaves = {n: p.clone().requires_grad_() for n, p in parameters.items()}
groups = [{"params": [leaves["matrix"]], "weight_decay": 0.1}, {"params": [leaves["norm"]], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
for step in range(10):
    for n, p in leaves.items():
        p.grad = torch.randn_like(p) * (2.0 if step % 2 else 0.05)  # every other step is clipped
        tensors[f"g{step}.{n}"] = p.grad.clone()
    torch.nn.utils.clip_grad_norm_(leaves.values(), 1.0)
    optimizer.step()
tensors |= {f"p10.{n}": p.detach().clone() for n, p in leaves.items()}
save_file(tensors, out / "adamw.safetensors")
