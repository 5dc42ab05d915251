"""Tests how `serve` and `monitor` treat a package: the K (drafted tokens per step) that validation chose, a /metrics
page that is not in the metrics format, and a chat template that kills its renderer."""

import http.server
import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from background import Server, Started
from made_report import with_speed
from specdec_run import SPECDEC, expect, run, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp())
target, package = work / "target", None


def reached_positions(flags="", of=None, warning=None):
    """Starts a server with the package and returns the draft positions that it reached while it answered one request.
    Fails unless the server warned about the package's validation exactly once with the text `warning`, or not at all if
    `warning` is None."""
    server = Server(f"{of or package} {flags}")
    url = server.url
    said = [line for line in server.lines if "the gate did not pass" in line]
    expect(len(said) == (warning is not None) and all(warning in line for line in said), f"serve's warning: {said}")
    request = urllib.request.Request(
        url + "/v1/completions",
        json.dumps({"prompt": "red", "max_tokens": 40, "seed": 1}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).read()
    models = json.loads(urllib.request.urlopen(url + "/v1/models", timeout=60).read())["data"]
    expect(
        [model["id"] for model in models] == ["Tiny-1", "target"],
        f"a directory called target is no name, and answers to it: {models}",
    )
    page = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    server.drain()
    found = re.findall(r'spec_decode_num_reached_tokens_per_pos_total\{position="(\d+)"\} ([0-9.e+]+)', page)
    return {int(position) for position, count in found if float(count) > 0}


class Page(http.server.BaseHTTPRequestHandler):
    text = ""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(Page.text.encode())

    def log_message(self, *_):
        pass


def counters(steps):
    return "".join(
        f"specdec:spec_decode_num_{name}_total {steps}\n" for name in ("drafts", "draft_tokens", "accepted_tokens")
    )


try:
    write_tiny_model(target, layers=2, seed=1)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"_name_or_path": "org/Tiny-1"}))
    # The target is its own draft, so every drafted token is accepted and every drafted position is reached.
    shutil.copytree(target, work / "draft")
    write_traffic(work / "log.jsonl", 12)
    specdec.data_ingest(work / "log.jsonl", target=target, holdout=0.5, out=work / "data")
    gate = {"parts": "acceptance,rollout", "contexts": "data", "k": 5, "threads": 1}
    specdec.validate(**gate, target=target, draft=work / "draft", data=work / "data", out=work / "gate")
    # A report of `specdec validate` that has no speed-up is not a pass. `package` and `serve` must say so, and serve
    # starts without drafting.
    code, out, err = run(
        f"package --target {target} --draft {work}/draft --report {work}/gate/report.json --store {work}/lost",
        code=4,
    )
    expect(
        "not measured: " in err and "; next: specdec validate --target " in err,
        f"refused with the reason and the command to run next: {err.splitlines()[-1]}",
    )
    code, out, err = run(
        f"package --target {target} --draft {work}/draft --report {work}/gate/report.json "
        f"--store {work}/lost --allow-failed",
    )
    expect(
        "the gate did not pass: inconclusive: not measured" in err
        and "  gate  inconclusive: " in out
        and "  next  specdec serve " in out,
        f"allowed with a warning: {out} {err}",
    )
    lost = next((work / "lost/packages").iterdir())
    expect(
        "\nk = 0\n" in (lost / "engines/specdec.toml").read_text()
        and "\nexec vllm serve" in (lost / "engines/vllm.sh").read_text(),
        "launch files start plain",
    )
    expect(
        "--speculative-config"
        not in "".join(
            line for line in (lost / "engines/vllm.sh").read_text().splitlines() if not line.startswith("#")
        ),
        "but for a comment",
    )
    code, out, err = run("package", "lint", lost)
    expect(
        "the gate did not pass: inconclusive: not measured" in out and "\nnext: specdec validate --target " in out,
        f"lint says so: {out}",
    )
    linted = json.loads(run("--json", "package", "lint", lost)[1])
    expect(
        linted["gate"]["verdict"] == "inconclusive" and linted["next"].startswith("specdec validate "), "in JSON too"
    )

    expect(reached_positions(of=lost, warning="inconclusive: not measured: ") == set(), "serve warns and starts plain")
    expect(
        reached_positions(of=f"--target {lost}", warning="inconclusive: not measured: ") == set(),
        "as --target it is the same pair",
    )
    positions = reached_positions(
        "--k 2", of=lost, warning="it drafts because --k says so; next: specdec validate --target "
    )
    expect(positions == {0, 1}, f"--k wins: positions {positions}")

    # If the report of `specdec validate` has a measured speed-up above 1, serve starts with the K of that measurement.
    report = with_speed(json.loads((work / "gate/report.json").read_text()), 5)
    (work / "gate/report.json").write_text(json.dumps(report))
    specdec.package(target=target, draft=work / "draft", report=work / "gate/report.json", store=work / "store")
    package = next((work / "store/packages").iterdir())
    expect(
        "K 5 (validated: measured 1.50 [1.40, 1.60])" in (package / "engines/specdec.toml").read_text(),
        "a package with a validated K 5 in its schedule",
    )
    positions = reached_positions()
    expect(positions == {0, 1, 2, 3, 4}, f"serve starts at the packaged K: positions {positions}")
    positions = reached_positions("--max-k 3")
    expect(positions == {0, 1, 2}, f"--max-k 3 wins: positions {positions}")
    positions = reached_positions("--k 1")
    expect(positions == {0}, f"--k 1 wins: positions {positions}")

    # serve uses the dtype in which `specdec validate` measured, even if the checkpoint has another. Launch files for
    # other engines keep the dtype of the checkpoint.
    report["inputs"]["dtype"] = "bf16"
    (work / "gate/bf16.json").write_text(json.dumps(report))
    specdec.package(target=target, draft=work / "draft", report=work / "gate/bf16.json", store=work / "narrow")
    narrow = next((work / "narrow/packages").iterdir())
    expect(
        'dtype = "bf16"' in (narrow / "engines/specdec.toml").read_text()
        and "--dtype float32" in (narrow / "engines/vllm.sh").read_text(),
        "launch files: ours in the gate's dtype, vLLM's in the checkpoint's",
    )
    for flags, said in (
        ("", "decoding in bf16, in which the gate measured this package"),
        ("--dtype fp32", "warning: the gate measured this package in bf16, and --dtype fp32"),
    ):
        server = Server(f"{narrow} {flags}")
        server.stop()
        expect(any(said in line for line in server.lines), f"serve {flags} says {said}: {server.lines}")
    server = Server(package)
    server.stop()
    expect(not any("in which the gate" in line for line in server.lines), "nothing to say where the gate's is its own")

    # If the source is not in the metrics format, `monitor check` exits with 7, and `monitor watch` warns and polls
    # again.
    web = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{web.server_port}/metrics"
    look = f"--package {package} --source {url} --state {work}/monitor.db"
    Page.text = "<html>under repair</html>\n"
    run(f"monitor check {look}", code=7, last_line=(url, "line 1"))
    watch = Started(f"monitor watch {look} --interval 1")
    watch.wait_for("failed polls in a row: 2")
    Page.text = counters(1000)
    deadline = time.monotonic() + 30
    while not (work / "monitor.db.report.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    code, out = watch.stop()
    expect(
        code == 4 and "inconclusive" in out,
        f"watch goes on after a page that is no metrics: exit {code}, {out.strip()}",
    )
    web.shutdown()

    # A chat template that kills its renderer is refused before the server listens. The renderer is a forked process, so
    # the server itself survives.
    killer = work / "killer"
    shutil.copytree(target, killer)
    config = json.loads((killer / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
    )
    (killer / "tokenizer_config.json").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words, answered = ["serve", "--target", str(killer), "--port", str(port)], 0
    server = subprocess.Popen([SPECDEC, *words], stderr=subprocess.PIPE, text=True)
    # Reads /proc instead of connecting: repeated attempts would miss a port that is open for milliseconds.
    while server.poll() is None:
        answered += f"0100007F:{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()
        time.sleep(0.001)
    errors = server.stderr.read()
    expect(
        server.returncode == 7 and "killed the renderer" in errors.splitlines()[-1],
        f"a killing template: exit 7: {errors.splitlines()[-1]}",
    )
    expect(answered == 0, "nothing listened while it was vetted")
finally:
    shutil.rmtree(work, ignore_errors=True)
