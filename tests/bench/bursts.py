"""Measures whether a server with a draft is ever slower than a server without a draft. Two servers with the same
weights, one with the draft and one without, get whole bursts of 1, 2, … simultaneous requests in turn.

  python3 tests/bench/bursts.py BUILD --target DIR --draft good=DIR --draft mediocre=DIR --texts FILE [--batches 1-16]
      [--bursts 24] [--fresh 4] [--out FILE]

A draft with random weights, in the shapes of the smallest draft, is added to the given drafts. DIR+NOISE is a draft
made worse (made_models.py). Both servers get the same prompts. Their bursts of a batch size alternate as A B B A, so
that a slow phase of the machine slows both servers. Both servers are restarted after every --fresh bursts: two
processes that do the same work differ by a few per cent for as long as they live, depending on where their pages are in
memory. A burst lasts from the first request sent to the end of the last answer, so it includes the time in which the
server learns the costs of drafting.

Prints one JSON object. For every draft and batch size, `to_plain` is the plain server's time divided by the time of the
server with the draft: the mean over pairs of bursts with its 90 % interval (wanted: at least 0.97). `middle` is the
mean of the middle three fifths of the pairs. The other fields say how the time of a burst was spent, from /metrics and
/proc of both servers: seconds by stage of the engine thread and outside of the stages, steps by K, plain steps by
reason, and probes (steps that draft only to measure). They also give the CPU seconds of the measured server and of the
other server, which should be idle meanwhile."""

import argparse
import http.client
import json
import math
import os
import random
import re
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import made_models
from served import Served

T90 = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75]


def metrics(server):
    out = {}
    for line in urllib.request.urlopen(server.url + "/metrics").read().decode().splitlines():
        if line.startswith("specdec:") and "_bucket" not in line:
            name, value = line.rsplit(" ", 1)
            out[name[8:]] = float(value)
    return out


def cpu_seconds(pid):
    """Returns the CPU seconds of a process and its children."""
    total = 0
    for p in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        fields = Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def burst(server, prompts, o):
    """Returns the seconds from sending the first request until the last answer is complete, and the mean seconds of an
    answer."""
    gate, seconds, failed = threading.Barrier(len(prompts) + 1), [], []

    def one(prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": o.tokens, "temperature": o.temperature, "ignore_eos": True})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        connection.connect()
        gate.wait()
        begun = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        seconds.append(time.perf_counter() - begun)
        if reply.get("usage", {}).get("completion_tokens") != o.tokens:
            failed.append(json.dumps(reply)[:300])

    threads = [threading.Thread(target=one, args=(p,)) for p in prompts]
    for t in threads:
        t.start()
    gate.wait()
    begun = time.perf_counter()
    for t in threads:
        t.join()
    if failed or len(seconds) != len(prompts):
        sys.exit(f"an answer is not what was asked for: {failed}")
    return time.perf_counter() - begun, sum(seconds) / len(seconds)


def labelled(counts, name):
    """Returns a map from label value to increase of the metric `name`, without the values that did not increase."""
    return {
        re.search(r'="([^"]*)"', k).group(1): round(v, 4)
        for k, v in counts.items()
        if k.startswith(name + "{") and v > 0
    }


def measured(server, other, prompts, o):
    before, rested, counts = cpu_seconds(server.process.pid), cpu_seconds(other.process.pid), metrics(server)
    seconds, answer = burst(server, prompts, o)
    after = metrics(server)
    return {
        "seconds": seconds,
        "answer": answer,
        "cpu": cpu_seconds(server.process.pid) - before,
        "other_cpu": cpu_seconds(other.process.pid) - rested,
        "moved": {k: v - counts.get(k, 0) for k, v in after.items()},
    }


def summed(runs):
    moved = {}
    for run in runs:
        for k, v in run["moved"].items():
            moved[k] = moved.get(k, 0) + v
    n = len(runs)
    stages = {k: round(v / n, 4) for k, v in labelled(moved, "stage_seconds_total").items()}
    seconds = sum(r["seconds"] for r in runs) / n
    out = {
        "seconds": round(seconds, 4),
        "answer_seconds": round(sum(r["answer"] for r in runs) / n, 4),
        "stages": stages,
        "outside": round(seconds - sum(stages.values()), 4),
        "cpu": round(sum(r["cpu"] for r in runs) / n, 3),
        "other_cpu": round(sum(r["other_cpu"] for r in runs) / n, 3),
        "steps": moved.get("steps_total", 0) / n,
    }
    reached = moved.get("spec_decode_num_reached_tokens_per_pos_total", 0) or sum(
        v for k, v in moved.items() if k.startswith("spec_decode_num_reached_tokens_per_pos_total")
    )
    if reached:
        overlap = sum(v for k, v in moved.items() if k.startswith("spec_decode_overlap_sum_per_pos_total"))
        out |= {"overlap": round(overlap / reached, 3)}
    if moved.get("spec_decode_num_probes_total") is not None:
        out |= {
            "k": labelled(moved, "spec_decode_num_steps_total"),
            "plain": labelled(moved, "spec_decode_num_plain_steps_total"),
            "probes": moved.get("spec_decode_num_probes_total", 0),
            "drafted": moved.get("spec_decode_num_draft_tokens_total", 0),
        }
    return out


def stop(servers):
    for server in servers:
        server.process.terminate()
        server.process.wait(60)


def drafting(run):
    """Returns the fraction (0 to 1) of a run's steps in which at least one token was drafted."""
    steps = labelled(run["moved"], "spec_decode_num_steps_total")
    return round(1 - steps.get("0", 0) / max(sum(steps.values()), 1), 3)


def of_pairs(pairs):
    logs = [math.log(plain["seconds"] / drafted["seconds"]) for drafted, plain in pairs]
    n, mean = len(logs), sum(logs) / len(logs)
    half = (
        T90[min(n - 2, len(T90) - 1)] * math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n)
        if n > 1
        else math.inf
    )
    return round(math.exp(mean), 3), [round(math.exp(mean - half), 3), round(math.exp(mean + half), 3)]


def middle(pairs):
    """Returns the mean ratio of the pairs after dropping the lowest and the highest fifth, because other processes of
    the machine may halve the speed of one burst in a hundred."""
    logs = sorted(math.log(plain["seconds"] / drafted["seconds"]) for drafted, plain in pairs)
    kept = logs[len(logs) // 5 : len(logs) - len(logs) // 5]
    return round(math.exp(sum(kept) / len(kept)), 3)


def numbers(text):
    out = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        out += range(int(low), int(high or low) + 1)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("--draft", action="append", default=[], help="NAME=DIR or NAME=DIR+NOISE")
    p.add_argument("--without-random", action="store_true")
    p.add_argument("--texts", type=Path, required=True, help="prompts are pieces of this file")
    p.add_argument("--batches", default="1-16", type=numbers)
    p.add_argument("--bursts", type=int, default=24)
    p.add_argument("--fresh", type=int, default=4, help="bursts of one pair of servers")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--prompt-bytes", type=int, default=60)
    p.add_argument("--temperature", type=float, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--flags", default="", help="more flags of the server with the draft")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    work, drafts = Path(tempfile.mkdtemp()), {}
    for text in o.draft:
        name, _, folder = text.partition("=")
        folder, _, noise = folder.partition("+")
        drafts[name] = made_models.worsen(folder, work / name, float(noise)) if noise else Path(folder)
    if not o.without_random:
        smallest = min(drafts.values(), key=lambda d: sum(f.stat().st_size for f in d.glob("*.safetensors")))
        drafts["random"] = made_models.worsen(smallest, work / "random", math.inf)
    text, rng, rows = o.texts.read_text(errors="replace").replace("<|endoftext|>", " "), random.Random(o.seed), []

    def prompts(batch):
        return [
            text[at : at + o.prompt_bytes] for at in (rng.randrange(len(text) - o.prompt_bytes) for _ in range(batch))
        ]

    flags = ["--target", o.target, "--threads", o.threads, "--dtype", o.dtype, "--max-batch", max(o.batches)]
    for name, folder in drafts.items():
        for batch in o.batches:
            pairs, servers = [], []
            for i in range(o.bursts):
                if i % o.fresh == 0:
                    stop(servers)
                    servers = [Served(o.build, *flags, "--draft", folder, *o.flags.split()), Served(o.build, *flags)]
                    drafted, plain = servers
                    for server in servers:
                        burst(server, ["Once"], o)  # not measured: absorbs the start-up cost of a process
                mine, order = prompts(batch), (drafted, plain) if i % 2 == 0 else (plain, drafted)
                runs = {
                    server.port: measured(server, plain if server is drafted else drafted, mine, o) for server in order
                }
                pairs.append((runs[drafted.port], runs[plain.port]))
            stop(servers)
            ratio, interval = of_pairs(pairs)
            rows.append(
                {
                    "draft": name,
                    "batch": batch,
                    "to_plain": ratio,
                    "interval": interval,
                    "middle": middle(pairs),
                    "each": [round(b["seconds"] / a["seconds"], 3) for a, b in pairs],
                    "each_drafts": [drafting(a) for a, _ in pairs],
                    "drafted": summed([a for a, _ in pairs]),
                    "plain": summed([b for _, b in pairs]),
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = {
        "schema": "specdec.bench-bursts/1",
        "rows": rows,
        "least_to_plain": min(r["to_plain"] for r in rows),
        "never_a_loss": all(r["to_plain"] >= 0.97 for r in rows),
    }
    out = json.dumps(result).replace('{"draft": "', '\n {"draft": "')
    print(out)
    if o.out:
        o.out.write_text(out + "\n")


main()
