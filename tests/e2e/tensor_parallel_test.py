"""Serves one target from several processes. They must give the same greedy texts as one process, with a draft model and
with an EAGLE-3 head. A drain must end all of them. If one is lost, all others must end with exit code 75."""

import concurrent.futures
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from specdec_run import SPECDEC, expect, run
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp())
servers = []
TARGET = work / "target"


class Server:
    def __init__(self, *flags):
        arguments = ["serve", "--target", TARGET, "--port", "0", "--threads", "1", "--dtype", "fp32", *flags]
        self.process = subprocess.Popen([str(x) for x in [SPECDEC, *arguments]], stderr=subprocess.PIPE, text=True)
        servers.append(self.process)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if "listening on" in line:
                break
        expect("listening on" in self.lines[-1], "the server starts: " + "".join(self.lines[-3:]).strip())
        self.url = self.lines[-1].split()[-1]

    def answer(self, prompt, **options):
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps(body | options).encode(),
            {"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]

    def answers(self):
        """Returns the texts of requests that are sent together (so that they are batched), then one by one, and then
        with a seed."""
        prompts = ["red green blue", "red green blue", "blue", "one two three four five six", "green " * 20]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            together = [choice["text"] for choice in pool.map(self.answer, prompts)]
        alone = [self.answer(prompt)["text"] for prompt in prompts]
        return together, alone, self.answer("red", temperature=1, seed=5)["text"]

    def others(self):
        """Returns the process ids of the ranks that the server started."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            children = [int(x) for x in f.read().split()]
        return [pid for pid in children if b"tensor-rank" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def end(self, timeout=60):
        code = self.process.wait(timeout=timeout)
        return code, self.process.stderr.read()


def gone(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.1)
    return False


def lose(server, after):
    """Kills one rank. Returns the server's exit code, its stderr, and the seconds until it ended. With `after`, sends a
    request after the kill, which must fail."""
    pids = server.others()
    begin = time.monotonic()
    os.kill(pids[-1], signal.SIGKILL)
    if after:
        try:
            server.answer("red")
            expect(False, "a server without a rank answers")
        except (urllib.error.HTTPError, ConnectionError) as e:
            expect(getattr(e, "code", 503) in (500, 503), f"the request fails: {e}")
    code, said = server.end()
    expect(gone(pids), "the other ranks have ended, too")
    return code, said, time.monotonic() - begin


try:
    write_tiny_model(TARGET, layers=4, seed=1)
    write_tiny_model(work / "draft", layers=2, seed=1)
    write_traffic(work / "log.jsonl", 20)
    run("data", "ingest", work / "log.jsonl", "--target", TARGET, "--holdout", "0.3", "--out", work / "data")
    run(
        *("distill", "--target", TARGET, "--data", work / "data", "--draft", "eagle3", "--out", work / "head"),
        *("--max-steps", "4", "--threads", "2"),
        code=(0, 3, 4),
    )

    for draft in [(), ("--draft", work / "draft", "--k", "3"), ("--draft", work / "head/draft", "--k", "3")]:
        alone = Server(*draft)
        expected = alone.answers()
        alone.process.send_signal(signal.SIGTERM)
        expect(alone.end()[0] == 0, "drained")
        server = Server(*draft, "--tensor-parallel", 2)
        pids = server.others()
        expect(len(pids) == 1, f"{len(pids)} other rank")
        expect(server.answers() == expected, f"2 ranks {draft and draft[1].parent.name}: the same texts")
        server.process.send_signal(signal.SIGTERM)
        code, said = server.end()
        expect(code == 0, f"drained with {code}: {said[-300:]}")
        expect(gone(pids), "the other rank has ended")

    server = Server("--draft", work / "draft", "--tensor-parallel", 2)
    code, said, seconds = lose(server, after=True)
    expect(code == 75, f"a lost rank ends the server with {code}: {said[-300:]}")
    expect("is gone" in said and "start the server again" in said, said.strip()[-300:])
    server = Server("--tensor-parallel", 2)
    code, said, seconds = lose(server, after=False)
    expect(code == 75, f"a rank lost while nothing is asked ends the server with {code}: {said[-300:]}")
    expect(seconds < 60, f"within {seconds:.0f} s")
    expect("rank 1 ended with exit code 137" in said, said.strip()[-200:])

    server = Server("--tensor-parallel", 2)
    pids = server.others()
    server.process.kill()
    expect(gone(pids, 60), "without the server its ranks end")

    run(
        *("serve", "--target", TARGET, "--tensor-parallel", 3),
        code=2,
        last_line=("3 ranks cannot hold this target together", "attention heads"),
    )
finally:
    for process in servers:
        if process.poll() is None:
            process.kill()
