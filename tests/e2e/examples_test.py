"""Runs the shell scripts of examples/ and the steps of gate.yml. Most run with real models. If a verdict depends on
measured times, a fake specdec gives the verdict instead. metrics_to_mlflow.py has its own test, because it needs
MLflow."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from specdec_run import SKIP, SOURCE, SPECDEC, expect, run
from tiny_model import write_tiny_model, write_traffic

EXAMPLES = SOURCE / "examples"
if not shutil.which("curl"):
    print("SKIPPED: curl is not installed")
    sys.exit(SKIP)
work = Path(tempfile.mkdtemp(prefix="specdec-examples-"))


def script(*command, programs=SPECDEC.parent, **environment):
    """Runs a script in the working directory. `programs` is the folder with specdec."""
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=work,
        env={**os.environ, **path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def parts_of(printed):
    """Returns what serve_and_curl.sh printed, by the title of each part."""
    parts = printed.split("--- ")[1:]
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in parts}


def check_serving():
    flags = ["--target", "models/target", "--draft", "run/draft", "--k", 2, "--threads", 1]
    code, out, err = script(EXAMPLES / "serve_and_curl.sh", *flags)
    expect(code == 0 and "drained" not in out, f"serve_and_curl.sh ends with 0: {code} {err}")
    models, chat, text, stream, figures = parts_of(out).values()
    expect(json.loads(models)["data"][0]["id"], "the server says which models it has")
    expect(json.loads(chat)["choices"][0]["message"]["role"] == "assistant", "it answers a chat")
    expect(json.loads(text)["usage"]["completion_tokens"] == 16, "and goes on with a text")
    lines = [line for line in stream.splitlines() if line]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    expect(
        lines[-1] == "data: [DONE]" and len(pieces) > 1 and all(p["object"] == "text_completion" for p in pieces),
        f"a streamed answer comes in {len(pieces)} pieces",
    )
    drafted = [float(line.split()[-1]) for line in figures.splitlines() if "num_draft_tokens" in line]
    expect(drafted and drafted[0] > 0, f"the figures say how many tokens were drafted: {figures}")
    code, _, err = script(EXAMPLES / "serve_and_curl.sh", "--target", "models/none")
    expect(code == 1 and "models/none" in err, "a server that does not start ends it, with the reason")
    code, _, err = script(EXAMPLES / "serve_and_curl.sh")
    expect(code == 2 and err.startswith("serve_and_curl.sh FLAG..."), "without flags it says how it is called")


def gate(*flags, out="gate", **more):
    shutil.rmtree(work / out, ignore_errors=True)
    shutil.rmtree(work / "output", ignore_errors=True)
    return script(EXAMPLES / "gate.sh", "models/target", "run/draft", "traffic", out, *flags, **more)


def check_gate():
    quick = ["--parts", "acceptance", "--contexts", "data", "--threads", 1]
    code, out, _ = gate(*quick)
    expect(code == 1 and out.endswith("take=no\n"), "a draft that fails is not taken")
    code, out, _ = gate(*quick, "--floor", 0.0001, "--force")
    expect(code == 0 and "inconclusive" in out and out.endswith("take=no\n"), "nor one of which nothing is known")
    code, out, err = script(EXAMPLES / "gate.sh", "models/target", "run/draft", "no-data", "gate")
    expect(code == 7 and "no-data" in err and out.endswith("take=no\n"), "bad data end it with their own code")
    code, _, err = script(EXAMPLES / "gate.sh", "models/target")
    expect(code == 2 and err.startswith("gate.sh TARGET"), "without arguments it says how it is called")

    # A fake specdec gives each exit code in turn, because the exit code of the real program depends on measured times.
    stand_in = work / "stand-in"
    stand_in.mkdir()
    (stand_in / "specdec").write_text('#!/bin/sh\necho "$@" > said\nexit "$CODE"\n')
    (stand_in / "specdec").chmod(0o755)
    seen = {}
    for verdict in (0, 2, 3, 4, 5, 6, 7, 8, 74, 75):
        (work / "output").write_text("")
        code, out, _ = gate("--k", 4, programs=stand_in, CODE=str(verdict), GITHUB_OUTPUT=str(work / "output"))
        expect((work / "output").read_text() == out, f"GitHub is told the same: {out.strip()}")
        seen[verdict] = (code, out.strip())
    codes = {0: 0, 2: 2, 3: 1, 4: 0, 5: 1, 6: 1, 7: 7, 8: 8, 74: 74, 75: 75}
    expect(
        seen == {verdict: (code, f"take={'yes' if verdict == 0 else 'no'}") for verdict, code in codes.items()},
        f"what a pipeline does after each exit code: {seen}",
    )
    said = (work / "said").read_text()
    expect(said == "validate --target models/target --draft run/draft --data traffic --out gate --k 4\n", said)


def check_workflow():
    steps = yaml.safe_load((EXAMPLES / "gate.yml").read_text())["jobs"]["gate"]["steps"]
    shutil.copy(EXAMPLES / "gate.sh", work)
    gating, packaging = (step for step in steps if "run" in step)
    expect(gating["id"] == "gate" and packaging["if"] == "steps.gate.outputs.take == 'yes'", "the gate decides")
    shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
    shutil.rmtree(work / "gate", ignore_errors=True)
    variables = {"DRAFT": "run/draft", "GITHUB_OUTPUT": str(work / "output")}
    (work / "output").write_text("")
    quick = " --parts acceptance --contexts data --threads 1"
    code, _, err = script(*shell, gating["run"] + quick, **variables)
    outputs = (work / "output").read_text()
    expect(code == 1 and outputs.endswith("take=no\n"), f"the first step gates: {code} {outputs} {err}")
    code, _, err = script(*shell, packaging["run"], **variables)
    expect(code != 0 and "gate" in err, f"and the second packages no draft that did not pass: {err.strip()}")
    code, _, err = script(*shell, packaging["run"] + " --allow-failed", **variables)
    expect(code == 0 and (work / "store/refs/candidate").exists(), f"unless it is told to: {err.strip()}")


try:
    write_tiny_model(work / "models/target", layers=3, seed=1)
    write_tiny_model(work / "run/draft", layers=1, seed=2)
    write_traffic(work / "log.jsonl", 120)
    run(
        "data",
        "ingest",
        work / "log.jsonl",
        "--target",
        work / "models/target",
        "--out",
        work / "traffic",
        "--holdout",
        0.5,
    )
    check_serving()
    check_gate()
    check_workflow()
finally:
    shutil.rmtree(work)
