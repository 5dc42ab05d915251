#!/usr/bin/env python3
"""Makes the golden files of tests/distill: losses with gradients by PyTorch's autograd, and ten AdamW steps by
torch.optim.

    python tests/distill/make_goldens.py    writes tests/distill/golden/ (torch 2.11.0, safetensors 0.8, numpy)

losses.safetensors   draft, target [6, 37], labels [6], rows [4]
                     for each loss and temperature: <loss>.<temperature>.loss, .acceptance, .grad [6, 37]
                     kept [14], the tokens of a draft with a reduced vocabulary, and for each loss at temperature 0.7:
                     kept.<loss>.loss, .acceptance, .grad [6, 14]
adamw.safetensors    p0.<name>, g<step>.<name>, p10.<name>: lr 1e-2, betas .9 .95, eps 1e-8, clip 1.0, decay 0.1 on
                     matrices only
"""

import math
from pathlib import Path

import torch
from safetensors.torch import save_file

out = Path(__file__).resolve().parent / "golden"
out.mkdir(exist_ok=True)
torch.manual_seed(7)

draft, target = 3 * torch.randn(6, 37), 3 * torch.randn(6, 37)
target[1] = draft[1] + 0.1 * torch.randn(37)  # a row in which draft and target nearly agree
labels, rows = torch.randint(0, 37, (6,)), torch.tensor([0, 1, 3, 4])
tensors = {"draft": draft, "target": target, "labels": labels, "rows": rows}
terms = {  # functions of log p, log q and label [R]; alpha [R] is Σ min(p, q) of each row
    "ce": lambda log_p, log_q, label, alpha: -log_q.gather(1, label[:, None]).mean(),
    "kl": lambda log_p, log_q, label, alpha: (log_p.exp() * (log_p - log_q)).sum(-1).mean(),
    "rkl": lambda log_p, log_q, label, alpha: (log_q.exp() * (log_q - log_p)).sum(-1).mean(),
    "tv": lambda log_p, log_q, label, alpha: 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1).mean(),
    "nla": lambda log_p, log_q, label, alpha: -alpha.log().mean(),
}


def jsd(beta):
    def loss(log_p, log_q, label, alpha):
        p, q = log_p.exp(), log_q.exp()
        log_m = (beta * p + (1 - beta) * q).log()
        return (beta * (p * (log_p - log_m)).sum(-1) + (1 - beta) * (q * (log_q - log_m)).sum(-1)).mean()

    return loss


def lk_hybrid(log_p, log_q, label, alpha):
    weight = math.exp(-3 * alpha.mean().item())
    return weight * terms["kl"](log_p, log_q, label, alpha) + (1 - weight) * terms["tv"](log_p, log_q, label, alpha)


mixes = {name: [(1, f)] for name, f in terms.items()} | {
    "jsd": [(1, jsd(0.5))],
    "jsd:0.1": [(1, jsd(0.1))],
    "lk_hybrid": [(1, lk_hybrid)],
    "0.1*ce+0.9*tv": [(0.1, terms["ce"]), (0.9, terms["tv"])],
    "0.5*lk_hybrid+2*jsd:0.7+0.25*rkl": [(0.5, lk_hybrid), (2, jsd(0.7)), (0.25, terms["rkl"])],
}
for name, mix in mixes.items():
    for temperature in [1.0, 0.7]:
        x = draft.clone().double().requires_grad_()
        log_q = (x[rows] / temperature).log_softmax(-1)
        log_p = (target[rows].double() / temperature).log_softmax(-1)
        alpha = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
        loss = sum(weight * f(log_p, log_q, labels[rows], alpha) for weight, f in mix)
        loss.backward()
        key = f"{name}.{temperature}"
        acceptance = alpha.detach().mean()
        tensors |= {
            f"{key}.loss": loss.detach().float().reshape(1),
            f"{key}.acceptance": acceptance.float().reshape(1),
            f"{key}.grad": x.grad.float(),
        }
# The draft has a reduced vocabulary: `kept`, 14 of the 37 tokens. kl, rkl and jsd renormalise the target over these
# tokens and leave out rows whose argmax is not one of them. acceptance, tv and nla use the target as it is. ce leaves
# out rows whose label is not one of the 14 tokens. Means are over all rows.
generator = torch.Generator().manual_seed(8)
kept = torch.randperm(37, generator=generator)[:14].sort().values
kept_set = set(kept.tolist())
held = torch.tensor([[float(t.argmax().item() in kept_set)] for t in target[rows]]).double()
assert 0 < held.sum() < len(rows)
said = torch.tensor([[float(label.item() in kept_set)] for label in labels[rows]]).double()
column = torch.searchsorted(kept, labels[rows]).clamp_max(13)
tensors |= {"kept": kept}
reduced_terms = {
    "ce": lambda p, r, log_q: -(said * log_q.gather(1, column[:, None])).mean(),
    "kl": lambda p, r, log_q: (held * r.exp() * (r - log_q)).sum(-1).mean(),
    "rkl": lambda p, r, log_q: (held * log_q.exp() * (log_q - r)).sum(-1).mean(),
    "tv": lambda p, r, log_q: 1 - torch.minimum(p, log_q.exp()).sum(-1).mean(),
    "nla": lambda p, r, log_q: -torch.minimum(p, log_q.exp()).sum(-1).log().mean(),
}


def reduced_jsd(p, r, log_q):
    log_m = (0.5 * (r.exp() + log_q.exp())).log()
    return 0.5 * (held * (r.exp() * (r - log_m) + log_q.exp() * (log_q - log_m))).sum(-1).mean()


def reduced_hybrid(p, r, log_q):
    weight = math.exp(-3 * torch.minimum(p, log_q.exp()).sum(-1).mean().item())
    return weight * reduced_terms["kl"](p, r, log_q) + (1 - weight) * reduced_terms["tv"](p, r, log_q)


reduced = {name: [(1, f)] for name, f in reduced_terms.items()} | {
    "jsd": [(1, reduced_jsd)],
    "lk_hybrid": [(1, reduced_hybrid)],
    "0.3*ce+0.5*rkl+nla": [(0.3, reduced_terms["ce"]), (0.5, reduced_terms["rkl"]), (1, reduced_terms["nla"])],
}
for name, mix in reduced.items():
    x = draft[:, kept].double().requires_grad_()
    log_q = (x[rows] / 0.7).log_softmax(-1)
    p = (target[rows].double() / 0.7).softmax(-1)[:, kept]
    r = (target[rows][:, kept].double() / 0.7).log_softmax(-1)
    loss = sum(weight * f(p, r, log_q) for weight, f in mix)
    loss.backward()
    acceptance = torch.minimum(p, log_q.exp().detach()).sum(-1).mean()
    tensors |= {
        f"kept.{name}.loss": loss.detach().float().reshape(1),
        f"kept.{name}.acceptance": acceptance.float().reshape(1),
        f"kept.{name}.grad": x.grad.float(),
    }
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
