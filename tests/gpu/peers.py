#!/usr/bin/env python3
"""peers.py compiled|assisted [--out FILE] [--toy]: measures what PyTorch users have, for comparison with the figures of
run.py, on a decoder of Llama 3's 8B shape with random weights in bf16.

compiled  a loop like gpt-fast's: layers compiled by torch.compile, a static cache, the whole step as one CUDA graph
assisted  transformers: generate(), plain and with an assistant model, which is the target's first three layers. The
          later layers are scaled down until 80 % of the assistant's tokens are accepted, as in Speed.Rounds.

Writes {"figures": {...}} to FILE after each figure. --toy takes a tiny shape on the CPU, to test this script."""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

CONTEXT = 512
AGREEMENT = 0.8
DRAFT_LAYERS = 3


class Shape:
    def __init__(self, toy):
        self.vocab, self.hidden, self.inner, self.layers = (61, 32, 40, 4) if toy else (128256, 4096, 14336, 32)
        self.heads, self.kv_heads, self.d = (2, 1, 16) if toy else (32, 8, 128)
        self.context = 16 if toy else CONTEXT
        self.device = "cpu" if toy else "cuda"
        self.dtype = torch.float32 if toy else torch.bfloat16


class Report:
    def __init__(self, path):
        self.path, self.figures = path, {}

    def record(self, group, name, figure):
        self.figures.setdefault(group, {})[name] = figure
        print(group, name, json.dumps(figure), flush=True)
        if self.path:
            following = self.path.with_name(self.path.name + ".next")
            following.write_text(json.dumps({"figures": self.figures}, indent=2))
            following.replace(self.path)


def wait(shape):
    if shape.device == "cuda":
        torch.cuda.synchronize()


class Layer(torch.nn.Module):
    """One decoder layer that processes one new token of each sequence, with a KV cache of fixed size."""

    def __init__(self, shape, batch, length):
        super().__init__()
        self.shape = shape

        def matrix(rows, columns):
            return torch.nn.Parameter(torch.randn(rows, columns, device=shape.device, dtype=shape.dtype) * 0.02)

        queries, keys = shape.heads * shape.d, shape.kv_heads * shape.d
        self.qkv, self.o = matrix(queries + 2 * keys, shape.hidden), matrix(shape.hidden, queries)
        self.gate_up, self.down = matrix(2 * shape.inner, shape.hidden), matrix(shape.hidden, shape.inner)
        ones = torch.ones(shape.hidden, device=shape.device, dtype=shape.dtype)
        self.first_norm, self.second_norm = torch.nn.Parameter(ones.clone()), torch.nn.Parameter(ones.clone())
        cache = torch.randn(2, batch, shape.kv_heads, length, shape.d, device=shape.device, dtype=shape.dtype)
        self.register_buffer("cache", cache)

    def forward(self, x, cos, sin, mask, place):
        shape, batch = self.shape, x.shape[0]
        qkv = F.linear(F.rms_norm(x, (shape.hidden,), self.first_norm, 1e-5), self.qkv)
        q, k, v = qkv.split([shape.heads * shape.d, shape.kv_heads * shape.d, shape.kv_heads * shape.d], dim=-1)
        # Processes query heads that share a key head together, as if they were rows of one sequence.
        q = rotate(q.view(batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.d), cos, sin)
        k = rotate(k.view(batch, shape.kv_heads, 1, shape.d), cos, sin)
        self.cache[0].index_copy_(2, place, k)
        self.cache[1].index_copy_(2, place, v.view(batch, shape.kv_heads, 1, shape.d))
        y = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask)
        x = x + F.linear(y.reshape(batch, -1), self.o)
        gate, up = F.linear(F.rms_norm(x, (shape.hidden,), self.second_norm, 1e-5), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Loop(torch.nn.Module):
    """A greedy decoder that keeps its tokens and positions on the device, so that it can run as a CUDA graph without
    the host."""

    def __init__(self, shape, batch, length):
        super().__init__()
        self.shape, self.length = shape, length
        self.blocks = torch.nn.ModuleList(Layer(shape, batch, length) for _ in range(shape.layers))
        options = {"device": shape.device, "dtype": shape.dtype}
        self.embed = torch.nn.Parameter(torch.randn(shape.vocab, shape.hidden, **options) * 0.02)
        self.head = torch.nn.Parameter(torch.randn(shape.vocab, shape.hidden, **options) * 0.02)
        self.norm = torch.nn.Parameter(torch.ones(shape.hidden, **options))
        half = torch.arange(0, shape.d, 2, device=shape.device) / shape.d
        angles = torch.arange(length, device=shape.device)[:, None] / 500000.0**half
        self.register_buffer("cos", angles.cos().to(shape.dtype))
        self.register_buffer("sin", angles.sin().to(shape.dtype))
        self.register_buffer("tokens", torch.zeros(batch, dtype=torch.long, device=shape.device))
        self.register_buffer("place", torch.full((1,), shape.context, dtype=torch.long, device=shape.device))

    def forward(self):
        x = self.embed[self.tokens]
        mask = (torch.arange(self.length, device=x.device) <= self.place)[None, None, None, :]
        cos, sin = self.cos[self.place], self.sin[self.place]
        for block in self.blocks:
            x = block(x, cos, sin, mask, self.place)
        logits = F.linear(F.rms_norm(x, (self.shape.hidden,), self.norm, 1e-5), self.head)
        self.tokens.copy_(logits.argmax(-1))
        self.place.add_(1)


@torch.no_grad()
def compiled(shape, report):
    steps = 4 if shape.device == "cpu" else 100
    for batch in (1, 16):
        loop = Loop(shape, batch, shape.context + 4 * steps)
        begin = time.perf_counter()
        if shape.device == "cuda":
            for block in loop.blocks:  # all layers share one compilation
                block.compile(fullgraph=True, dynamic=False)
        side = torch.cuda.Stream() if shape.device == "cuda" else None
        with torch.cuda.stream(side):
            for _ in range(3):
                loop()
        wait(shape)
        step = loop
        if shape.device == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loop()
            step = graph.replay
        prepared = time.perf_counter() - begin
        times = []
        for _ in range(3):
            wait(shape)
            begin = time.perf_counter()
            for _ in range(steps // 2):
                step()
            wait(shape)
            times.append((time.perf_counter() - begin) / (steps // 2))
        seconds = sorted(times)[1]
        report.record(
            "compiled",
            f"8B bf16, batch {batch}",
            {
                "seconds": seconds,
                "tokens_per_second": batch / seconds,
                "context": shape.context,
                "seconds_to_compile": prepared,
            },
        )
        del loop, step


def accepted_share(target, draft, text, options):
    """Returns the probability that a drafted token is accepted, averaged over the positions of a text."""
    rows = [model(text).logits[0].float() for model in (target, draft)]
    if not options["do_sample"]:
        return (rows[0].argmax(-1) == rows[1].argmax(-1)).float().mean().item()
    shaped = []
    for logits in rows:
        values, ids = logits.topk(options["top_k"], dim=-1)
        p = (values / options["temperature"]).softmax(-1)
        p = p * (p.cumsum(-1) - p < options["top_p"])
        shaped.append(torch.zeros_like(logits).scatter_(-1, ids, p / p.sum(-1, keepdim=True)))
    return torch.minimum(*shaped).sum(-1).mean().item()


@torch.no_grad()
def assisted(shape, report):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.d,
        max_position_embeddings=8192,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(shape.dtype)
    try:
        with torch.device(shape.device):
            target = LlamaForCausalLM(config).eval()
            draft_config = LlamaConfig(**{**config.to_dict(), "num_hidden_layers": DRAFT_LAYERS})
            draft = LlamaForCausalLM(draft_config).eval()
    finally:
        torch.set_default_dtype(default)
    draft.model.embed_tokens, draft.lm_head, draft.model.norm = (
        target.model.embed_tokens,
        target.lm_head,
        target.model.norm,
    )
    draft.model.layers = target.model.layers[:DRAFT_LAYERS]

    count = 40 if shape.device == "cpu" else 128
    text = ((torch.arange(count, device=shape.device) * 7919 + 13) % shape.vocab)[None]
    prompt = ((torch.arange(shape.context, device=shape.device) * 7919) % shape.vocab)[None]
    new_tokens = 8 if shape.device == "cpu" else 64
    scale = 1.0
    for name, options in (
        ("greedy", {"do_sample": False}),
        ("T 1, top-k 40, top-p .95", {"do_sample": True, "temperature": 1.0, "top_k": 40, "top_p": 0.95}),
    ):
        low, high = -12.0, 2.0
        for step in range(10):
            middle = (low + high) / 2 if step < 9 else low
            for layer in target.model.layers[DRAFT_LAYERS:]:
                for matrix in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                    matrix.mul_(math.exp2(middle) / scale)
            scale = math.exp2(middle)
            agrees = accepted_share(target, draft, text, options)
            if step < 9:
                low, high = (middle, high) if agrees > AGREEMENT else (low, middle)
        report.record("agreement", f"transformers, {name}", {"accepted_share": agrees, "scale": scale})
        draft.generation_config.num_assistant_tokens = 4
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        rates = {}
        for way, more in (("plain", {}), ("assisted", {"assistant_model": draft})):
            for timed in (False, True):
                wait(shape)
                begin = time.perf_counter()
                out = target.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=new_tokens,
                    min_new_tokens=new_tokens,
                    **options,
                    **more,
                )
                wait(shape)
                if timed:
                    rates[way] = (out.shape[1] - prompt.shape[1]) / (time.perf_counter() - begin)
        report.record(
            "assisted",
            f"8B bf16, batch 1, {name}",
            {
                "plain_tokens_per_second": rates["plain"],
                "assisted_tokens_per_second": rates["assisted"],
                "over_plain": rates["assisted"] / rates["plain"],
                "new_tokens": new_tokens,
                "context": shape.context,
            },
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("compiled", "assisted"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    {"compiled": compiled, "assisted": assisted}[options.peer](Shape(options.toy), Report(options.out))


main()
