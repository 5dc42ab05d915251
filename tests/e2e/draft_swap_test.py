"""Swaps the draft of a running server, after a trial in which the server scores the new draft beside the old one. Tests
model directories, a package and its channel, and drafts that must be refused."""

import http.client
import json
import shutil
import socket
import tempfile
import urllib.request
from pathlib import Path

from background import Server
from specdec_run import expect, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp())


class Admin(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(work / "admin.sock"))


def admin(**order):
    connection = Admin("admin", timeout=60)
    connection.request(
        "POST" if order else "GET",
        "/admin/draft",
        json.dumps(order) if order else None,
        {"Content-Type": "application/json"},
    )
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def answer(seed):
    body = json.dumps({"prompt": "red green", "max_tokens": 24, "seed": seed, "ignore_eos": True}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]


def serve(target, draft):
    """Starts a server and returns it and its URL."""
    server = Server(f"--target {target} --draft {draft} --k 3 --admin-socket {work}/admin.sock")
    return server, server.url


def gate(query=""):
    return json.load(urllib.request.urlopen(url + "/gate" + query, timeout=60))


try:
    target = work / "target"
    write_tiny_model(target, layers=2, seed=1)
    write_tiny_model(work / "other", layers=2, seed=2)
    shutil.copytree(target, work / "same")
    write_traffic(work / "log.jsonl", 12)
    for name in ("target", "other"):
        specdec.data_ingest(work / "log.jsonl", target=work / name, holdout=0.5, out=work / f"data-{name}")
        pair = {"target": work / name, "draft": work / "same"}
        gate_of = {"parts": "acceptance,rollout", "contexts": "data", "k": 3, "threads": 1}
        specdec.validate(**pair, **gate_of, data=work / f"data-{name}", out=work / f"gate-{name}")
        report, store = work / f"gate-{name}/report.json", work / f"store-{name}"
        specdec.package(**pair, report=report, store=store, allow_failed=True, channel="canary")
    server, url = serve(target, work / "same")
    texts = [answer(seed) for seed in range(8)]
    code, status = admin()
    expect(code == 200 and status["state"] == "none" and status["serving"], f"no candidate yet: {status}")
    live = gate()
    expect(
        live["role"] == "serving"
        and live["draft"] == status["serving"]["id"]
        and live["n"] == 8
        and live["acceptance"] > 0.999,
        f"the gate judges the draft that serves: {live}",
    )
    code, reply = admin(action="load", draft=f"{work}/store-other:canary")
    expect(
        code == 409 and "packaged for another target" in reply["error"]["message"],
        f"a draft of another target: {reply}",
    )
    code, reply = admin(action="load", draft=str(work / "absent"))
    expect(code == 409 and "absent" in reply["error"]["message"], f"no such draft: {reply}")
    damaged = next((work / "store-target/packages").iterdir())
    code, status = admin(action="load", draft=f"{work}/store-target:canary", serve=1)
    expect(code == 200 and status["state"] == "canary", f"on trial: {status}")
    expect([answer(seed) for seed in range(8)] == texts, "the same texts from the candidate")
    expect(admin()[1]["candidate"]["answers"] == 8, "all of them with it")
    code, status = admin(action="promote")
    expect(code == 200 and status["serving"]["name"].endswith(":canary"), f"promoted: {status}")
    code, status = admin(action="load", draft=str(work / "other"), score=1)
    expect(code == 200, f"unbound, of the same vocabulary: {status}")
    expect([answer(seed) for seed in range(8)] == texts, "the same texts while another scores")
    paired = admin()[1]["paired"]
    expect(
        paired["conversations"] == 8 and paired["serving"]["value"] > 0.999 > paired["candidate"]["value"],
        f"paired: {paired}",
    )
    live = gate("?floor=0.99")
    expect(
        live["role"] == "candidate"
        and live["acceptance"] == paired["candidate"]["value"]
        and live["ci"] == paired["candidate"]["ci"]
        and live["floor"] == 0.99,
        f"the gate judges the draft on trial: {live}",
    )
    expect(admin(action="drop")[1]["state"] == "dropped" and gate()["role"] == "serving", "dropped")
    weights = damaged / "draft/model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    code, reply = admin(action="load", draft=f"{work}/store-target:canary")
    expect(code == 409 and admin()[1]["state"] == "refused", f"a damaged package: {reply}")
    expect([answer(seed) for seed in range(8)] == texts, "and nothing has changed")
    server.drain()

    # Tries an EAGLE-3 head beside the draft model that serves, and then serves with the head.
    deep = work / "deep"
    write_tiny_model(deep, layers=5, seed=2)
    shutil.copytree(deep, work / "deep-same")
    specdec.data_ingest(work / "log.jsonl", target=deep, holdout=0.5, out=work / "data-deep")
    head = {"draft": "eagle3", "draft_vocab": 100, "ttt_steps": 3, "loss": "kl", "lr": 0.001, "contexts": "data"}
    steps = {"max_steps": 20, "batch_tokens": 400}
    specdec.distill(**head, **steps, target=deep, data=work / "data-deep", out=work / "head")
    server, url = serve(deep, work / "deep-same")
    texts = [answer(seed) for seed in range(8)]
    code, status = admin(action="load", draft=str(work / "head/draft"), score=1)
    expect(code == 200 and status["state"] == "canary", f"a head on trial: {status}")
    expect([answer(seed) for seed in range(8)] == texts, "the same texts while a head scores")
    paired = admin()[1]["paired"]
    expect(
        paired["conversations"] == 8 and paired["serving"]["value"] > 0.999 > paired["candidate"]["value"] > 0.05,
        f"a head is scored: {paired}",
    )
    expect(admin(action="promote")[0] == 200, "a head is promoted")
    expect([answer(seed) for seed in range(8)] == texts, "the same texts with the head")
    live = gate()
    expect(live["role"] == "serving" and 0.05 < live["acceptance"] < 0.999, f"the head serves: {live}")
    server.drain()
finally:
    shutil.rmtree(work, ignore_errors=True)
