"""Simulates a night without an operator. Under live load the target is swapped. One check recognises the swap,
redistils and puts the new draft on trial, and later checks promote it. Then a bad candidate is tried and rolled back.
All answers must be the target's own text at all times."""

import http.client
import json
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from specdec_run import SPECDEC, expect, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-overnight-"))
live, store, admin_socket = work / "live", work / "store", work / "admin.sock"
PROMPTS = ["red green", "one two three", "up", "down blue"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


port = free_port()


def write_loop(name, channel):
    (work / name).write_text(f"""[loop]
target = "{live}"
logs = ["log.jsonl"]
work = "loop-{channel}"
store = "{store}"
channel = "{channel}"
draft = "prune:1"
[data]
holdout = 0.5
[distill]
max-steps = 300
lr = 0.01
batch-tokens = 512
threads = 1
[validate]
parts = "acceptance,rollout"
contexts = "data"
k = 3
threads = 1
exit-zero = true
[package]
allow-failed = true
""")
    return work / name


class Server:
    """The server of the target that the link `live` names. The test restarts it as operators do."""

    def __init__(self):
        words = f"serve --target {live} --draft {store}:production --allow-stale --k 3 --port {port} --threads 1"
        words += f" --admin-socket {admin_socket} --acceptance-log {work}/acceptance.jsonl"
        self.process = subprocess.Popen(
            [SPECDEC, *shlex.split(words)], stderr=open(work / "serve.log", "a"), stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                if urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).status == 200:
                    return
            except OSError:
                pass
            expect_alive(self.process)
            if time.monotonic() > deadline:
                expect(False, "the server is ready in 60 s: " + (work / "serve.log").read_text()[-500:])
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def expect_alive(process):
    if process.poll() is not None:
        expect(
            False, f"the server lives, it ended with {process.returncode}: " + (work / "serve.log").read_text()[-500:]
        )


class Load:
    """Sends requests from two clients until the test ends. A request that fails during a restart is sent again."""

    def __init__(self):
        self.ended = threading.Event()
        self.answered, self.retried, self.wrong = 0, 0, []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.ask_on, args=(i,)) for i in range(2)]
        for t in self.threads:
            t.start()

    def ask_on(self, client):
        n = 0
        while not self.ended.is_set():
            n += 1
            try:
                complete(
                    {
                        "prompt": PROMPTS[n % 4],
                        "max_tokens": 12,
                        "seed": n,
                        "ignore_eos": True,
                        "metadata": {"conversation_id": f"{client}-{n}"},
                    }
                )
                with self.lock:
                    self.answered += 1
            except (OSError, http.client.HTTPException) as e:
                if isinstance(e, urllib.error.HTTPError) and e.code != 503:
                    with self.lock:
                        self.wrong.append(f"{e.code}: {e.read()[:200]}")
                with self.lock:
                    self.retried += 1
                time.sleep(0.05)

    def wait_for(self, more):
        goal, deadline = self.answered + more, time.monotonic() + 120
        while self.answered < goal:
            if time.monotonic() > deadline:
                expect(False, f"{more} answers in 120 s, wrong: {self.wrong}")
            time.sleep(0.02)

    def stop(self):
        self.ended.set()
        for t in self.threads:
            t.join()


def complete(body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]


def greedy_is_exact(what):
    for prompt in PROMPTS:
        plain = specdec.generate(target=live, prompt=prompt, temperature=0, k=0, max_tokens=24, threads=1).text
        served = complete({"prompt": prompt, "max_tokens": 24, "temperature": 0})
        if served != plain:
            expect(False, f"{what}: greedy text is the target's own: {plain!r}, served {served!r}")
    print(f"ok: {what}: greedy text is the target's own, {len(PROMPTS)} of {len(PROMPTS)} prompts")


def check():
    watched = {"package": f"{store}:production", "source": work / "acceptance.jsonl", "target": live}
    trial = {"candidate": f"{store}:candidate", "allow_failed": True, "admin": f"unix:{admin_socket}", "score": 1}
    kept = {"state": work / "monitor.db", "prom": work / "specdec.prom"}
    result = specdec.monitor_check(**watched, **trial, **kept, loop=work / "LOOP.toml")
    return result.exit_code, result.raw


def named(channel):
    return (store / "refs" / channel).read_text().strip()


def serving():
    connection = http.client.HTTPConnection("admin", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(admin_socket))
    connection.request("GET", "/admin/draft")
    return json.loads(connection.getresponse().read())["serving"]["id"]


def draft_of(channel):
    return json.loads((store / "packages" / ("sha256-" + named(channel)) / "manifest.json").read_text())["draft"][
        "fingerprint"
    ]["id"]


def until(state, load, what):
    """Runs checks under load until the monitor reaches `state`. Returns the exit code and the result of the last check,
    and the states on the way."""
    way = []
    for _ in range(40):
        load.wait_for(30)
        code, result = check()
        way += [t["to"] for t in result["transitions"]]
        if result["state"] == state or state in way:
            return code, result, way
    expect(False, f"{what}: {way}, {result['state']}, {result['waiting']}, {result['actions']}")


server = load = None
try:
    write_tiny_model(work / "day-1", layers=2, seed=1)
    write_tiny_model(work / "day-2", layers=2, seed=2)
    write_traffic(work / "log.jsonl", 200)
    live.symlink_to(work / "day-1")
    write_loop("LOOP.toml", "candidate")
    specdec.loop_run(write_loop("FIRST.toml", "production"))
    first = named("production")
    server = Server()
    load = Load()
    load.wait_for(120)
    code, result = check()
    expect((code, result["state"]) == (0, "HEALTHY"), f"the evening: {result['verdict']}, {result['reason']}")

    # The overnight update: the link `live` names another target, and the server restarts under load.
    (work / "next").symlink_to(work / "day-2")
    (work / "next").rename(live)
    expect(server.stop() == 0, "the old server drains")
    server = Server()
    greedy_is_exact("the new target with the stale draft")
    started = time.monotonic()
    code, result = check()
    way = [t["from"] for t in result["transitions"]] + [result["state"]]
    expect((code, result["verdict"]) == (5, "stale_target"), f"recognised in one check: {result['reason']}")
    expect(
        way == ["HEALTHY", "STALE_TARGET", "REDISTILLING", "CANDIDATE", "CANARY"],
        f"which redistils and puts the draft on trial, {time.monotonic() - started:.0f} s: {way}",
    )
    greedy_is_exact("while the new draft is on trial")
    code, result, way = until("HEALTHY", load, "promoted")
    second = named("production")
    expect(second != first and second == named("candidate"), f"the new draft is promoted: {way}")
    expect(serving() == draft_of("production"), "and the running server has it")
    greedy_is_exact("the new target with its own draft")
    load.wait_for(120)
    code, result = check()
    expect((code, result["state"]) == (0, "HEALTHY"), f"all is well again: {result['verdict']}, {result['reason']}")

    # A bad draft is packaged and put into the channel `candidate`.
    write_tiny_model(work / "bad", layers=1, seed=9)
    data = next((work / "loop-candidate/runs").iterdir()) / "data"
    pair = {"target": live, "draft": work / "bad"}
    gate = {"parts": "acceptance,rollout", "contexts": "data", "k": 3, "threads": 1}
    specdec.validate(**pair, **gate, data=data, out=work / "gate-bad")
    report = work / "gate-bad/report.json"
    specdec.package(**pair, report=report, store=store, channel="candidate", allow_failed=True)
    bad = named("candidate")
    code, result = check()
    expect(result["state"] == "CANARY", f"the bad candidate is on trial: {result['waiting']}")
    code, result, way = until("ROLLED_BACK", load, "rolled back")
    expect(named("production") == second and serving() == draft_of("production"), f"rolled back: {way}")
    expect(named("candidate") == second, "its channel names the draft before it")
    specdec.package_promote("sha256-" + bad, store=store, channel="candidate", why="a second try")
    for _ in range(2):
        code, result = check()
        expect(
            result["state"] == "HEALTHY" and not any(t["to"] == "CANDIDATE" for t in result["transitions"]),
            "it is never tried again",
        )
    greedy_is_exact("the morning")
    load.stop()
    expect(
        not load.wrong,
        f"{load.answered} answers, {load.retried} asked again while servers changed, none wrong: {load.wrong}",
    )

    report = specdec.monitor_report(state=work / "monitor.db").raw
    events = [t["event"] for t in report["transitions"]]
    expect(
        events[:5] == ["stale", "go", "candidate", "on_trial", "better"]
        and events[5:8] == ["candidate", "on_trial", "worse"],
        f"the whole night: {events}",
    )
    expect(
        all(t["evidence"] for t in report["transitions"] if t["event"] in ("stale", "go", "better", "worse")),
        "each with its evidence",
    )
    expect(not report["pending"], f"nothing is left to be done: {report['pending']}")
    expect('specdec_state{state="HEALTHY"} 1' in (work / "specdec.prom").read_text(), "the textfile says so, too")
    expect(server.stop() == 0, "drained")
    server = None
finally:
    if load:
        load.ended.set()
    if server:
        server.process.kill()
    shutil.rmtree(work, ignore_errors=True)
