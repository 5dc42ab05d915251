#!/usr/bin/env python3
"""make_log.py MEGABYTES [SEED] > log.jsonl: writes a synthetic log of an OpenAI-compatible gateway, always the same for
one seed.

Rows of 0.3 to 8 kB: one to three exchanges of words drawn by frequency (Zipf) from a made-up vocabulary, with numbers,
code and a little non-ASCII text; one message in 50 holds an e-mail address, a telephone number or an IP address; one
row in 25 repeats an earlier one and one in 25 repeats it with a few words changed."""

import json
import random
import sys


def main():
    size, seed = int(float(sys.argv[1]) * 1e6), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    vocabulary = ["".join(rng.choices(letters, weights=range(26, 0, -1), k=rng.randint(2, 9))) for _ in range(20000)]
    vocabulary += ["größe", "naïve", "東京", "coût"]
    cumulative = []
    total = 0.0
    for rank in range(len(vocabulary)):
        total += 1.0 / (rank + 2.7)
        cumulative.append(total)
    pool = rng.choices(vocabulary, cum_weights=cumulative, k=2_000_000)  # sentences are slices of this pool
    domains = ["chat", "code", "math", "support"]

    def words(n):
        at = rng.randrange(len(pool) - n)
        return " ".join(pool[at : at + n])

    def text(n):
        made = words(n)
        what = rng.random()
        if what < 0.1:
            count, factor = rng.randrange(100), rng.randrange(1000)
            made += f"\n```python\nfor i in range({count}):\n    print(i * {factor})\n```\n"
        elif what < 0.25:
            count, year, share = rng.randrange(10**6), rng.randrange(1900, 2030), rng.random() * 100
            made += f" It was {count} in {year}, or {share:.2f} %."
        elif what < 0.27:
            made += rng.choice(
                [
                    " Mail {}@{}.example.com.".format(pool[rng.randrange(1000)], "mail"),
                    f" Call +49 {rng.randrange(100, 999)} {rng.randrange(10**6, 10**7)}.",
                    f" The host is 10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}.",
                ]
            )
        return made

    written, number, kept = 0, 0, []
    out = sys.stdout
    while written < size:
        number += 1
        what = rng.random()
        if kept and what < 0.08:
            talk = [dict(m) for m in rng.choice(kept)]
            if what < 0.04:
                answer = talk[-1]["content"].split(" ")
                answer[rng.randrange(len(answer))] = "changed"
                talk[-1]["content"] = " ".join(answer)
        else:
            talk = [{"role": "system", "content": "You are a helpful assistant."}] if rng.random() < 0.3 else []
            for _ in range(rng.randint(1, 3)):
                talk += [
                    {"role": "user", "content": text(rng.randint(5, 120))},
                    {"role": "assistant", "content": text(rng.randint(20, 300))},
                ]
            if len(kept) < 2000:
                kept.append(talk)
        row = {
            "id": f"req-{number:09}",
            "conversation_id": f"conv-{number // 2:08}",
            "created": 1767225600 + number,
            "model": "target-8b",
            "user": f"team-{rng.randrange(40)}",
            "domain": rng.choice(domains),
            "temperature": 0.7,
            "top_p": 0.95,
            "stream": True,
            "messages": talk,
            "usage": {"prompt_tokens": 100, "completion_tokens": 200, "total_tokens": 300},
            "metadata": {"region": "eu-1", "latency_ms": rng.randrange(5000)},
        }
        line = json.dumps(row, ensure_ascii=number % 10 == 0) + "\n"
        written += len(line)
        out.write(line)


main()
