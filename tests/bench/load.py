"""Measures `specdec serve` under load from outside: with the arrivals of a trace at several speeds, with ten times more
requests than it can answer, and in a long mixed run.

  python3 tests/bench/load.py trace    BUILD --target DIR --draft DIR --texts FILE --arrivals CSV [--speeds 1 2 4]
      [--seconds 60] [--scale 0.05]
  python3 tests/bench/load.py overload BUILD --target DIR --draft DIR --texts FILE [--seconds 30] [--factor 10]
  python3 tests/bench/load.py soak     BUILD --target DIR --draft DIR --other DIR --texts FILE [--seconds 600]
      [--requests 5000]

CSV has the columns TIMESTAMP,ContextTokens,GeneratedTokens (the Azure LLM inference traces), and both lengths are
multiplied by --scale. Prompts are pieces of FILE. Prints one JSON object. The client has one thread, so the target
should be large enough (tens of millions of weights) for the server to be the slower of the two."""

import argparse
import asyncio
import csv
import datetime
import json
import os
import random
import resource
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

from served import Served


class Server(Served):
    def __init__(self, o):
        super().__init__(
            o.build,
            "--target",
            o.target,
            "--draft",
            o.draft,
            "--threads",
            o.threads,
            "--max-batch",
            o.max_batch,
            *o.flags.split(),
        )
        # The started process may have helper processes, or be only a launcher. The process that serves has the most
        # threads.
        family = [
            str(self.process.pid),
            *Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split(),
        ]
        self.pid = max(family, key=lambda pid: len(list(Path(f"/proc/{pid}/task").iterdir())))

    def stop(self):
        self.process.terminate()
        return self.process.wait(120)

    def resident(self):
        return next(
            int(line.split()[1]) * 1024
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )

    def descriptors(self):
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def processor_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self, key=None):
        request = urllib.request.Request(
            self.url + "/metrics", headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        lines = urllib.request.urlopen(request, timeout=60).read().decode().splitlines()
        return {
            name.removeprefix("specdec:"): float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
        }


async def read_reply(reader):
    status = int((await reader.readline()).split()[1])
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        key, _, value = line.decode().partition(":")
        headers[key.lower()] = value.strip()
    return status, headers


async def body_of(reader, headers):
    if "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    elif "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await reader.readline(), 16):
            yield await reader.readexactly(size)
            await reader.readline()
        await reader.readline()


async def ask(server, path, body, cancel_after=None, unix=None, key=None, on_token=None):
    """Sends one request and returns its outcome: the status, the times of its tokens since it was sent, and the text.
    The client disconnects after cancel_after seconds. on_token is called at the first token."""
    begin = time.perf_counter()
    out = {"status": 0, "times": [], "text": "", "tokens": 0, "cancelled": False}
    try:
        reader, writer = await (
            asyncio.open_unix_connection(unix) if unix else asyncio.open_connection("127.0.0.1", server.port)
        )
    except OSError as e:
        out["lost"] = str(e)
        return out
    try:
        data = json.dumps(body).encode()
        head = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
        ]
        head += [f"Authorization: Bearer {key}"] if key else []
        writer.write("".join(line + "\r\n" for line in [*head, ""]).encode() + data)

        async def read():
            out["status"], out["headers"] = await read_reply(reader)
            whole = b""
            async for piece in body_of(reader, out["headers"]):
                whole += piece
                if body.get("stream") and b"token_ids" in piece:
                    if not out["times"] and on_token:
                        on_token()
                    out["times"].append(time.perf_counter() - begin)
            return whole

        whole = await asyncio.wait_for(read(), cancel_after if cancel_after else 600)
        out["seconds"] = time.perf_counter() - begin
        if out["status"] != 200:
            out["error"] = whole.decode()[:300]
        elif body.get("stream"):
            events = [json.loads(e[6:]) for e in whole.decode().split("\n\n") if e.startswith("data: {")]
            failed = [e for e in events if "error" in e]
            if failed or b"[DONE]" not in whole:
                out["lost"] = json.dumps(failed) if failed else "a stream without an end"
            for e in events:
                for c in e.get("choices", []):
                    out["tokens"] += len(c.get("token_ids", []))
                    out["text"] += c.get("text") or c.get("delta", {}).get("content") or ""
        else:
            reply = json.loads(whole)
            if "usage" in reply:
                out["tokens"] = reply["usage"]["completion_tokens"]
                out["text"] = "".join(c.get("text") or c["message"]["content"] for c in reply["choices"])
            out["reply"] = reply
    except TimeoutError:
        out["cancelled"] = cancel_after is not None
        if not cancel_after:
            out["lost"] = "no reply in 600 s"
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as e:
        out["lost"] = repr(e)
    finally:
        writer.close()
    return out


def percentiles(values):
    values = sorted(values)
    return (
        {f"p{q}": round(values[min(len(values) - 1, int(q / 100 * len(values)))], 5) for q in (50, 90, 99)}
        if values
        else None
    )


def figures(answers, seconds):
    done = [a for a in answers if a["status"] == 200 and not a["cancelled"] and "lost" not in a]
    gaps = [b - a for r in done for a, b in zip(r["times"], r["times"][1:])]
    return {
        "requests": len(answers),
        "statuses": dict(Counter(str(a["status"]) for a in answers)),
        "lost": [a["lost"] for a in answers if "lost" in a][:5],
        "seconds": round(seconds, 2),
        "goodput_tokens_per_second": round(sum(a["tokens"] for a in done) / seconds, 1),
        "answers_per_second": round(len(done) / seconds, 2),
        "time_to_first_token": percentiles([a["times"][0] for a in done if a["times"]]),
        "between_deliveries": percentiles(gaps),
        "total": percentiles([a["seconds"] for a in done]),
    }


class Work:
    def __init__(self, o):
        self.text = o.texts.read_text(errors="replace").replace("<|endoftext|>", " ")
        self.rng = random.Random(o.seed)

    def prompt(self, tokens):
        at = self.rng.randrange(len(self.text) - 4000)
        return self.text[at : at + max(4, int(2.5 * tokens))]

    def body(self, prompt_tokens, tokens, **more):
        return {
            "prompt": self.prompt(prompt_tokens),
            "max_tokens": max(1, tokens),
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "temperature": self.rng.choice([0, 1]),
            **more,
        }


async def replay(server, arrivals, key=None, on_end=None):
    """Sends each of `arrivals`, a list of (second, path, body, cancel_after), at its time, without waiting for earlier
    answers."""
    begin = time.perf_counter()
    tasks = []
    for at, path, body, cancel in arrivals:
        await asyncio.sleep(max(0, begin + at - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(server, path, body, cancel, key=key)))
        if on_end:
            tasks[-1].add_done_callback(lambda task: on_end(task.result()))
    answers = await asyncio.gather(*tasks)
    return answers, time.perf_counter() - begin


async def closed_loop(server, o, make, workers, seconds, key=None):
    answers, begin = [], time.perf_counter()

    async def worker():
        while time.perf_counter() - begin < seconds:
            answers.append(await ask(server, "/v1/completions", make(), key=key))

    await asyncio.gather(*(worker() for _ in range(workers)))
    return answers, time.perf_counter() - begin


def trace(o):
    rows = []
    with open(o.arrivals) as file:
        for row in csv.DictReader(file):
            stamp = row["TIMESTAMP"][:26]
            rows.append(
                (
                    datetime.datetime.fromisoformat(stamp).timestamp(),
                    int(row["ContextTokens"]),
                    int(row["GeneratedTokens"]),
                )
            )
    first, runs = rows[0][0], {}
    for speed in o.speeds:
        server, work = Server(o), Work(o)
        limit = o.context * 2 // 3
        arrivals = [
            (
                (t - first) / speed,
                "/v1/completions",
                work.body(min(limit, int(p * o.scale)), min(o.context // 4, max(1, int(g * o.scale)))),
                None,
            )
            for t, p, g in rows
            if (t - first) / speed < o.seconds
        ]
        runs[str(speed)] = figures(*asyncio.run(replay(server, arrivals)))
        runs[str(speed)]["drained"] = server.stop() == 0
        print(speed, runs[str(speed)], file=sys.stderr)
    return {
        "schema": "specdec.bench-trace/1",
        "scale": o.scale,
        "speeds": runs,
        "nothing_lost": all(not r["lost"] and set(r["statuses"]) <= {"200", "429", "503"} for r in runs.values()),
    }


def samples_of(server, stop):
    """Samples memory and descriptors every second until `stop` is set."""
    samples = []

    async def sample():
        while not stop.is_set():
            samples.append((server.resident(), server.descriptors()))
            await asyncio.sleep(1)

    return samples, asyncio.create_task(sample())


def flatness(samples, server):
    third = max(1, len(samples) // 3)
    mean = lambda rows, column: sum(r[column] for r in rows) / max(1, len(rows))
    return {
        "resident_mib": {
            "second third": round(mean(samples[third : 2 * third], 0) / 2**20, 1),
            "last third": round(mean(samples[2 * third :], 0) / 2**20, 1),
            "end": round(server.resident() / 2**20, 1),
        },
        "descriptors": {
            "second third": round(mean(samples[third : 2 * third], 1), 1),
            "last third": round(mean(samples[2 * third :], 1), 1),
            "most": max(s[1] for s in samples),
            "end": server.descriptors(),
        },
    }


def per_processor_second(before, after, seconds):
    return (after["generation_tokens_total"] - before["generation_tokens_total"]) / seconds


def overload(o):
    """Measures overload: one tenant sends `factor` times as many requests as the server can answer. Meanwhile a second
    tenant sends one request at a time."""
    work = Work(o)
    make = lambda: work.body(40, o.answer)
    keys = Path(tempfile.mkdtemp()) / "keys"
    keys.write_text("key-of-the-flood flood\nkey-of-the-other other\n")
    o.flags += f" --api-key-file {keys}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = Server(o)
    flood, other = "key-of-the-flood", "key-of-the-other"
    asyncio.run(closed_loop(server, o, make, o.max_batch, 3, flood))
    idle_descriptors, before, processor = server.descriptors(), server.metrics(flood), server.processor_seconds()
    peak = figures(*asyncio.run(closed_loop(server, o, make, 2 * o.max_batch, o.peak_seconds, flood)))
    peak["tokens_per_processor_second"] = per_processor_second(
        before, server.metrics(flood), server.processor_seconds() - processor
    )
    rate = o.factor * peak["answers_per_second"]
    arrivals = [(i / rate, "/v1/completions", make(), None) for i in range(int(rate * o.seconds))]

    async def run():
        ended, waits, others, stop = Counter(), [], [], asyncio.Event()
        samples, sampling = samples_of(server, stop)

        async def ask_alone():
            while not stop.is_set():
                at = ended[200]
                others.append(
                    await ask(
                        server,
                        "/v1/completions",
                        work.body(20, 8),
                        key=other,
                        on_token=lambda at=at: waits.append(ended[200] - at),
                    )
                )

        alone = asyncio.create_task(ask_alone())
        answers, seconds = await replay(server, arrivals, flood, lambda answer: ended.update([answer["status"]]))
        stop.set()
        await asyncio.gather(alone, sampling)
        await asyncio.sleep(1)
        return answers, seconds, others, waits, samples

    before, processor = server.metrics(flood), server.processor_seconds()
    answers, seconds, others, waits, samples = asyncio.run(run())
    after = server.metrics(flood)
    # Requests accepted near the end are answered after the last arrival, so goodput is divided by the time until the
    # last answer.
    over = figures(answers, seconds)
    over["tokens_per_processor_second"] = per_processor_second(before, after, server.processor_seconds() - processor)
    refused = [a for a in answers + others if a["status"] in (429, 503)]
    return {
        "schema": "specdec.bench-overload/1",
        "peak": peak,
        "offered_answers_per_second": round(rate, 1),
        "overload": over,
        "goodput_to_peak": over["goodput_tokens_per_second"] / peak["goodput_tokens_per_second"],
        "goodput_to_peak_by_processor_time": over["tokens_per_processor_second"] / peak["tokens_per_processor_second"],
        "batch_size": (after["batch_size_sum"] - before["batch_size_sum"])
        / (after["batch_size_count"] - before["batch_size_count"]),
        "only_429_503": set(over["statuses"]) <= {"200", "429", "503"} and not over["lost"],
        "without_retry_after": sum("retry-after" not in a["headers"] for a in refused),
        "other": {**figures(others, seconds), "answers_of_the_flood_while_it_waited": percentiles(waits)},
        "idle_descriptors": idle_descriptors,
        **flatness(samples, server),
        "running": after["num_requests_running"],
        "waiting": after["num_requests_waiting"],
        "kv_cache_usage_perc": after["kv_cache_usage_perc"],
        "drained": server.stop() == 0,
    }


def mixed(o, work, rng, i, fixed):
    kind = rng.random()
    if kind < 0.15:
        return "/v1/completions", fixed[i % len(fixed)], None
    if kind < 0.35:
        return "/v1/completions", work.body(30, 24, stream=False, min_p=0.05), None
    if kind < 0.5:
        return "/v1/completions", work.body(60, o.answer), rng.uniform(0.005, o.patience)  # the client disconnects
    if kind < 0.6:
        return "/v1/completions", work.body(20, 24, guided_regex="[a-z ]{1,40}"), None
    if kind < 0.7:
        return "/v1/completions", work.body(20, 16, n=2, logprobs=3), None
    if kind < 0.75:
        return "/v1/completions", {"prompt": work.prompt(10), "max_tokens": -1}, None
    return "/v1/completions", work.body(rng.randint(4, 100), rng.randint(1, 64), top_p=0.9, frequency_penalty=0.1), None


def soak(o):
    work, rng = Work(o), random.Random(o.seed)
    server = Server(o)
    fixed = [work.body(30, 40, seed=i, speculative=False) for i in range(16)]

    async def run():
        wanted = [(await ask(server, "/v1/completions", body))["text"] for body in fixed]
        for body in fixed:
            body["speculative"] = True
        orders, stop = Counter(), asyncio.Event()
        idle_descriptors = server.descriptors()
        samples, sampling = samples_of(server, stop)

        async def swap():
            while not stop.is_set():
                for order in (
                    {"action": "load", "draft": str(rng.choice([o.other, o.draft])), "score": 0.5},
                    {"action": "share", "serve": 0.5},
                    {"action": rng.choice(["promote", "drop"])},
                ):
                    reply = await ask(server, "/admin/draft", order, unix=str(server.folder / "admin.sock"))
                    orders[f"{order['action']} {reply['status']}"] += 1
                    await asyncio.sleep(1)

        side = [asyncio.create_task(swap()), sampling]
        arrivals = [(i * o.seconds / o.requests, *mixed(o, work, rng, i, fixed)) for i in range(o.requests)]
        answers, seconds = await replay(server, arrivals)
        stop.set()
        await asyncio.gather(*side)
        await asyncio.sleep(1)
        place = {id(body): i for i, body in enumerate(fixed)}
        again = [(a, place[id(body)]) for a, (_, _, body, _) in zip(answers, arrivals) if id(body) in place]
        changed = sum(a["status"] == 200 and a["text"] != wanted[i] for a, i in again)
        end = server.metrics()
        return {
            "schema": "specdec.bench-soak/1",
            **figures(answers, seconds),
            "cancelled": sum(a["cancelled"] for a in answers),
            "orders": dict(orders),
            "seeded_answers": len(again),
            "seeded_texts_changed": changed,
            "idle_descriptors": idle_descriptors,
            **flatness(samples, server),
            "running": end["num_requests_running"],
            "waiting": end["num_requests_waiting"],
            "kv_cache_usage_perc": end["kv_cache_usage_perc"],
        }

    result = asyncio.run(run())
    return {**result, "drained": server.stop() == 0}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["trace", "overload", "soak"])
    p.add_argument("build", type=Path)
    for name in ("--target", "--draft", "--texts"):
        p.add_argument(name, type=Path, required=True)
    p.add_argument("--other", type=Path, help="soak: the draft that is swapped with the other one")
    p.add_argument("--arrivals", type=Path)
    p.add_argument("--speeds", type=float, nargs="*", default=[1, 2, 4])
    p.add_argument("--scale", type=float, default=0.05)
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--factor", type=float, default=10)
    p.add_argument("--requests", type=int, default=5000)
    p.add_argument("--seconds", type=float)
    p.add_argument("--peak-seconds", type=float, default=10)
    p.add_argument(
        "--answer", type=int, help="overload: tokens of an answer (48); soak: of those whose client leaves (64)"
    )
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--max-batch", type=int, default=8)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flags", default="", help="more flags of specdec serve")
    p.add_argument("--patience", type=float, default=0.4, help="soak: seconds after which clients that leave have left")
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    if o.what == "trace" and not o.arrivals:
        p.error("trace: --arrivals names the CSV")
    o.seconds = o.seconds or {"trace": 60, "overload": 30, "soak": 600}[o.what]
    o.answer = o.answer or {"overload": 48, "soak": 64}.get(o.what)
    o.other = o.other or o.draft
    text = json.dumps({"trace": trace, "overload": overload, "soak": soak}[o.what](o), indent=1)
    print(text)
    if o.out:
        o.out.write_text(text + "\n")


main()
