"""Predicts the speed of decoding on a GPU from the bytes that the code moves and the kernels that it launches. Nothing
here is measured.

  python3 tests/bench/cuda_forecast.py [--context 2048] [--alpha 0.8] [--sampling t1]

Bytes follow from the models' shapes. Launches, copies and waits are those that tests/kernels/fibers/round counts in the
real code (round_costs_test.cpp): a pass is one graph of nine kernels a layer and three more, two copies, and a kernel
that draws tokens; a round uploads once, copies back once and waits once. The speed at which a GPU does this work is
assumed (the constants below). Prints the table of docs/benchmarks.md in Markdown."""

import argparse

# For each GPU: bytes per second of its memory, bytes per second of its L2 cache, bf16 operations per second of its
# tensor cores.
GPUS = {"H100": (3.35e12, 5.5e12, 0.99e15), "H200": (4.8e12, 5.5e12, 0.99e15)}
COPY, CORES = 0.90, 0.40  # fractions of the memory bandwidth and of the tensor operations that our kernels reach
WIDE_CORES = 0.60  # fraction of the tensor operations that cuBLASLt reaches, in passes of more than NARROW rows
NARROW = 64
# Seconds per layer in addition to reading weights and caches. These are estimates from the kernels' machine code: a
# round trip to memory takes 0.6 to 0.8 µs. Five of the nine kernels start when the previous one has ended. The four
# products start before, fetch their first weights, and only read their input rows after the previous kernel. Two norms
# make two round trips each and add over the block. The preparation of heads and the start and the end of attention make
# two each, and its merge two. Loads of a product are all in flight after 0.4 µs.
GAP = 1e-6
LAYER = 5 * GAP + 4 * 0.4e-6 + 2 * 1.7e-6 + 1.4e-6 + 2.0e-6 + 1.6e-6 + 4 * 0.4e-6
# Seconds in which one block of 1,024 threads reads or rewrites a row of 128,256 numbers in the L2 cache: 5.7 µs to read
# it (64 bytes a clock), 9 to read and write it; a sum in fixed point takes 9, because a multiprocessor converts 16
# numbers a clock to or from 64 bits, and the exponential of every element 17. Sampling a token finds the largest logit,
# computes the exponentials, scales them to probabilities, and sums these. If top-k or top-p leave few tokens, these
# tokens are in a list and the row is only set to 0.
READ, REWRITE, SUM, WEIGH, CLEAR, LIST = 5.7e-6, 9e-6, 9e-6, 17e-6, 5e-6, 4e-6
DRAW = {
    "greedy": READ,
    "t1": READ + WEIGH + REWRITE + SUM + 2e-6,
    "top-p": READ + WEIGH + LIST + CLEAR + SUM + 2e-6,
    "top-k": READ + 2 * LIST + READ + CLEAR + SUM + 2e-6,
}
# Seconds of verification, whose blocks have half as many threads: they read the row of logits once for the scores, and
# up to three times for the verification rule.
VERIFY = 80e-6
ROUND = 60e-6  # seconds per step on the device (drafting and verification) for planning, upload, copy back and wait
VOCAB = 128256


class Model:
    def __init__(self, layers, e, i, heads, kv, d, head_rows=VOCAB, extra=0, bytes_each=2, head_each=None):
        self.layers, self.bytes_each = layers, bytes_each
        self.wider_head = e * head_rows * ((head_each or bytes_each) - bytes_each)
        self.parameters = layers * (e * (heads + 2 * kv) * d + heads * d * e + 3 * e * i) + e * head_rows + extra
        self.cached = 2 * layers * kv * d * 2  # bytes of KV cache per token

    def bytes(self):
        return self.parameters * self.bytes_each + self.wider_head

    def kernels(self, gpu, rows, sequences, context):
        """Returns the seconds of a pass's kernels: the slowest of memory, L2 cache and tensor cores. rows_product reads
        its input rows once for every 16 or 32 output columns (for 9 to 16 rows on average 22 of the matrices of an 8B
        model), as if nothing came from L1. It reads the weights once for every 64 rows (quantised: 32), the first time
        from memory and then from L2."""
        memory, cache, cores = GPUS[gpu]
        most, outputs = (64, 16 if rows <= 8 else 22 if rows <= 16 else 32) if self.bytes_each == 2 else (32, 32)
        moved = self.bytes() + sequences * context * self.cached
        operations = 2 * self.parameters * rows / cores
        if rows > NARROW and self.bytes_each == 2:
            return max(moved / (memory * COPY), operations / WIDE_CORES)
        again = self.bytes() * (1 + min(rows, most) / outputs * 2 / self.bytes_each) * -(-rows // most)
        return max(moved / (memory * COPY), again / cache, operations / CORES)

    def seconds(self, gpu, rows, sequences, context):
        beside_layers = 3 + 2  # the embedding, the last norm and the head; two copies
        return self.kernels(gpu, rows, sequences, context) + self.layers * LAYER + beside_layers * GAP


TARGET = Model(32, 4096, 14336, 32, 8, 128)
DRAFT = Model(16, 2048, 8192, 32, 8, 64)
DRAFT8 = Model(16, 2048, 8192, 32, 8, 64, bytes_each=1.0625)  # int8 with one scale of 4 bytes per 64 weights
# A target quantised with GPTQ or AWQ: the matrices of layers in 4 bits, with 32 more bits per 128 weights, and the head
# in 16 bits.
TARGET4 = Model(32, 4096, 14336, 32, 8, 128, bytes_each=0.53125, head_each=2)
# The layer of an EAGLE-3 head. `extra` counts the weights that a plain layer lacks: `fc` (input: three hidden states),
# and the half of queries, keys and values that reads the second of two states of width E.
EAGLE = Model(1, 4096, 14336, 32, 8, 128, head_rows=32000, extra=3 * 4096 * 4096 + 4096 * 48 * 128)


def plain(gpu, batch, o, target=TARGET):
    return batch / (target.seconds(gpu, batch, batch, o.context) + DRAW[o.sampling] + VERIFY + ROUND)


def tokens_a_round(alpha, k):
    return sum(alpha**i for i in range(k + 1))


def round_on_device(draft, gpu, batch, k, o):
    level = draft.seconds(gpu, batch, batch, o.context) + DRAW[o.sampling]
    return k * level + TARGET.seconds(gpu, batch * (k + 1), batch, o.context) + DRAW[o.sampling] + VERIFY + ROUND


def best(draft, gpu, batch, o):
    """Returns the highest tokens per second, and its K. A K is tried only if its pass has at most 256 rows, the limit
    of the kernels."""
    choices = [k for k in range(1, 8) if batch * (k + 1) <= 256]
    return max((batch * tokens_a_round(o.alpha, k) / round_on_device(draft, gpu, batch, k, o), k) for k in choices)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--context", type=int, default=2048, help="tokens in each sequence's cache")
    p.add_argument("--alpha", type=float, default=0.8, help="acceptance of a drafted token")
    p.add_argument("--sampling", choices=DRAW, default="t1", help="t1: temperature 1, without top-k and top-p")
    o = p.parse_args()
    print("| GPU | batch | 8B plain | + 1B bf16 | + 1B int8 | + EAGLE-3 | 8B int4 plain |")
    print("|---|---|---|---|---|---|---|")
    for gpu in GPUS:
        for batch in (1, 16, 64):
            base = plain(gpu, batch, o)
            cells = []
            for draft in (DRAFT, DRAFT8, EAGLE):
                speed, k = best(draft, gpu, batch, o)
                cells.append(f"{speed:,.0f} (K = {k}, {speed / base:.2f} ×)")
            print(
                f"| {gpu} | {batch} | {base:,.0f} | " + " | ".join(cells) + f" | {plain(gpu, batch, o, TARGET4):,.0f} |"
            )


main()
