"""Checks the Python package. It must find the program, and its functions must pass their arguments on as flags. Every
object that the program prints must fit docs/results.json and its dataclass. A verdict must be returned as a result, and
a failure raised as an exception. mypy must accept the package."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from json_schema import Schemas
from specdec_run import BUILD, SOURCE, SPECDEC, expect
from tiny_model import write_tiny_model, write_traffic

PACKAGES = BUILD / "lib/python3/dist-packages"
sys.path.insert(0, str(PACKAGES))
os.environ["SPECDEC_BIN"] = str(SPECDEC)
specdec = importlib.import_module("specdec")
program = importlib.import_module("specdec.program")
commands = importlib.import_module("specdec.commands")

work = Path(tempfile.mkdtemp(prefix="specdec-python-"))
document = json.loads((SOURCE / "docs/results.json").read_text())
schemas = Schemas(document)
seen = set()


def unknown_keys(schema, value, where):
    """Returns the keys of `value`, at any depth, that the schema does not name."""
    schema = schemas.look_up(schema)
    found = []
    for one in schema.get("anyOf", []):
        if value is not None and "$ref" in one:
            found += unknown_keys(one, value, where)
    if isinstance(value, dict) and "properties" in schema:
        for key, item in value.items():
            if key not in schema["properties"]:
                found.append(f"{where}.{key}")
            else:
                found += unknown_keys(schema["properties"][key], item, f"{where}.{key}")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for key, item in value.items():
            found += unknown_keys(schema["additionalProperties"], item, f"{where}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            found += unknown_keys(schema["items"], item, where + "[]")
    return found


def check(result, name):
    """Checks that a result fits the JSON schema of its class and has no key that the schema does not name."""
    kind = type(result).__name__
    seen.add(kind)
    definition = document["$defs"][kind]
    problem = schemas.problem(definition, result.raw)
    expect(problem is None, f"{name} prints a {kind} {problem or ''}")
    unknown = unknown_keys(definition, result.raw, "$")
    expect(not unknown, f"{name}: the schema names every key {unknown or ''}")
    return result


def fails(kind, code, text, call):
    try:
        call()
    except specdec.SpecdecError as error:
        codes = code if isinstance(code, tuple) else (code,)
        good = type(error) is kind and error.exit_code in codes and text in error.message
        expect(good, f"{kind.__name__}, exit code {error.exit_code}: {error}")
        return error
    expect(False, f"expected {kind.__name__} with {text}")


def check_search():
    """Checks the order of the places where the package looks for the program."""
    tree = work / "tree/lib/python3/dist-packages"
    shutil.copytree(PACKAGES / "specdec", tree / "specdec", ignore=shutil.ignore_patterns("__pycache__"))
    ask = "import specdec; print(specdec.find_program())"

    def find(**variables):
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    def put(path, text="#!/bin/sh\necho 9.9.9\n"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    expect("no specdec program found" in find(), "without a program: what to do")
    script = put(work / "scripts/specdec", "#!/usr/bin/env python3\n")
    expect("no specdec program" in find(PATH=f"{script.parent}"), "a Python script on PATH is not the program")
    on_path = put(work / "path/specdec")
    expect(find(PATH=f"{script.parent}:{on_path.parent}") == str(on_path), "the program on PATH, behind such a script")
    installed = put(work / "tree/bin/specdec")
    expect(find(PATH=str(on_path.parent)) == str(installed), "that of the same installed tree comes before PATH")
    wheel = put(tree / "specdec/tree/bin/specdec")
    expect(find(PATH=str(on_path.parent)) == str(wheel), "that of the wheel comes before it")
    expect(find(SPECDEC_BIN=str(SPECDEC)) == str(SPECDEC), "SPECDEC_BIN comes first")
    expect("is not a program" in find(SPECDEC_BIN="/nonexistent"), "SPECDEC_BIN has to exist")
    main = [sys.executable, "-m", "specdec", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(main, env=environment, capture_output=True, text=True)
    expect(done.stdout == f"specdec {specdec.__version__}\n", f"python -m specdec --version: {done.stdout.strip()}")
    done = subprocess.run([*main[:3], "validate", "--taget", "x"], env=environment, capture_output=True, text=True)
    expect(done.returncode == 2 and "--target" in done.stderr, "python -m specdec has the program's exit codes")


def check_arguments():
    def line(command, **given):
        return program.arguments_of(commands.COMMANDS[command], given)

    expect(
        line("data ingest", out="o", sources=["a", Path("b")], no_redact=True, near_duplicates=0.8, records=False)
        == ["data", "ingest", "a", "b", "--out=o", "--no-redact", "--near-duplicates=0.8"],
        "positional arguments, paths, flags and numbers",
    )
    expect(
        line("bench", ks=[2, "auto"], draft=["a", "b"], suffix=False)
        == ["bench", "--ks=2,auto", "--draft=a", "--draft=b", "--no-suffix"],
        "comma lists, flags that repeat, and flags that have a no",
    )
    expect(
        line("package promote", package="x", why="-1 'is' fine") == ["package", "promote", "x", "--why=-1 'is' fine"],
        "values that look like flags",
    )
    fails(specdec.UsageError, 2, "no argument taget", lambda: specdec.run("validate", taget="x"))
    fails(specdec.UsageError, 2, "no command 'serv'", lambda: specdec.run("serv"))


def check_light():
    """Checks the functions of commands that need no model."""
    old = work / "old"
    shutil.copytree(SOURCE / "tests/compat/0.1.0", old)
    store = old / "store"
    listed = check(specdec.package_list(store=store), "package list")
    expect(listed.packages[0].verdict == "pass" and listed.ok, "a package of an earlier version")
    package = f"{store}:production"
    check(specdec.package_verify(package), "package verify")
    linted = check(specdec.package_lint(package), "package lint")
    expect(linted.gate and linted.gate.verdict == "pass", "lint: the gate's verdict")
    digest = listed.packages[0].digest
    for promoted in ("trial", "trial"):
        moved = check(specdec.package_promote(digest, store=store, channel=promoted, why="a test"), "package promote")
        expect(moved.to == digest, "from_ and to of a channel")
    check(specdec.package_pin(digest, store=store), "package pin")
    check(specdec.package_unpin(digest, store=store), "package unpin")
    check(specdec.package_gc(store=store, dry_run=True), "package gc")
    check(specdec.package_push(package, store=work / "other", channel="production"), "package push")
    check(specdec.package_pull(f"{work}/other:production", store=work / "third"), "package pull")
    check(specdec.monitor_status(state=old / "monitor.db"), "monitor status")
    check(specdec.monitor_report(state=old / "monitor.db"), "monitor report")
    watched = check(
        specdec.monitor_check(package=package, source=[old / "recorded/acceptance"], state=work / "m.db"),
        "monitor check",
    )
    expect(watched.exit_code == 4 and watched.verdict == "inconclusive", "an undecided check is a result, exit code 4")
    records = specdec.data_ingest([old / "recorded"], out=work / "records", records=True, quiet=True)
    check(records, "data ingest --records")
    check(specdec.init(work / "init", only=["loop", "systemd"]), "init")
    check(specdec.doctor(), "doctor")
    expect(specdec.run("doctor").raw["schema"] == "specdec.doctor/1", "run() finds the same command by its name")
    base = specdec.monitor_baseline(package=package, source=old / "recorded/acceptance", out=work / "baseline.json")
    expect(check(base, "monitor baseline").exit_code == 4, "too few requests for a baseline are a result")
    fails(specdec.InputError, 7, "nope", lambda: specdec.data_stats(work / "nope"))
    fails(specdec.UsageError, 2, "--keep", lambda: specdec.package_gc(store=store, keep=0))
    error = fails(specdec.InputError, 7, "", lambda: specdec.package_verify(work))
    expect(error.command[-1] == str(work) and error.result is None, "an exception has the command")


def check_models():
    """Checks the functions of commands that run models, on a pair of a few thousand parameters."""
    target, draft, data = work / "target", work / "draft", work / "data"
    write_tiny_model(target, layers=2, seed=1)
    write_tiny_model(draft, layers=1, seed=2)
    write_traffic(work / "traffic.jsonl", 60)
    pair = {"target": target, "data": data, "threads": 1, "quiet": True}
    ingested = check(specdec.data_ingest(work / "traffic.jsonl", target=target, out=data), "data ingest")
    expect(ingested.splits["train"].rows > 0, "data ingest: rows by split")
    check(specdec.data_stats(data), "data stats")
    check(specdec.data_audit(data, target=target), "data audit")
    check(specdec.data_label(data, target=target, out=work / "labels", top_k=4, threads=1, quiet=True), "data label")
    answer = specdec.generate(target=target, draft=draft, prompt="ab", max_tokens=4, k=2, threads=1)
    expect(len(check(answer, "generate").token_ids) <= 4, "generate: token ids")
    check(specdec.fetch(target), "fetch")
    written = specdec.export(SOURCE / "cli/demo/assets/target", gguf=work / "target.gguf", type="q8_0")
    expect(check(written, "export").type == "q8_0", "export: the type")
    gate = specdec.validate(
        draft=draft, out=work / "gate", max_requests=8, rollout_tokens=8, speed_tokens=8, speed_prompts=2, **pair
    )
    check(gate, "validate")
    expect(not gate.ok and gate.exit_code in (3, 4, 6) and gate.next, f"a gate that does not pass: {gate.verdict}")
    parts = specdec.validate(
        draft=draft,
        out=work / "gate-2",
        parts=["acceptance"],
        baseline=work / "gate/report.json",
        max_requests=8,
        **pair,
    )
    expect(check(parts, "validate --baseline").speed is None and parts.baseline, "absent parts are None")
    made = specdec.package(
        target=target, draft=draft, report=work / "gate/report.json", store=work / "store", channel="production"
    )
    expect(check(made, "package").exit_code == gate.exit_code and not made.digest, "package: the gate's exit code")
    made = specdec.package(
        target=target, draft=draft, report=work / "gate/report.json", store=work / "store", allow_failed=True
    )
    expect(bool(check(made, "package --allow-failed").digest), "package: the digest")
    quantised = specdec.package_quantise(draft=draft, format="int8", out=work / "int8")
    check(quantised, "package quantise")
    bench = specdec.bench(draft=[draft], out=work / "bench", ks=[2], batches=[1], prompts=2, tokens=8, **pair)
    check(bench, "bench")
    trained = specdec.distill(draft="prune:1", out=work / "run", max_steps=2, batch_tokens=256, **pair)
    expect(check(trained, "distill").exit_code in (0, 3, 4), f"distill: {trained.verdict}")
    forecast = {"forecast": True, "forecast_samples": [4, 8, 16], "max_steps": 12, "batch_tokens": 256}
    forecast = check(specdec.distill(draft="prune:1", out=work / "run-2", **forecast, **pair), "distill --forecast")
    expect(isinstance(forecast, specdec.DistillForecastResult) and forecast.run.rows > 16, "a DistillForecastResult")
    (work / "LOOP.toml").write_text(
        f'[loop]\ntarget = "{target}"\nlogs = ["{work}/traffic.jsonl"]\nwork = "{work}/loop"\nstore = "{work}/store"\n'
        'channel = "production"\ndraft = "prune:1"\n[distill]\nmax-steps = 1\nbatch-tokens = 256\nthreads = 1\n'
    )
    planned = check(specdec.loop_run(work / "LOOP.toml", plan=True), "loop run --plan")
    expect(isinstance(planned, specdec.LoopPlan), "loop run --plan is a LoopPlan")
    looped = check(specdec.loop_run(work / "LOOP.toml", quiet=True), "loop run")
    expect(isinstance(looped, specdec.LoopResult), f"loop run: {looped.verdict}")
    long = {"draft": "prune:1", "out": work / "long", "epochs": 100000, "timeout": 0.01}
    fails(specdec.Interrupted, (75, 143), "stopped after", lambda: specdec.run("distill", **long, **pair))


CLIENT = """
import specdec
gate = specdec.validate(target="t", draft="d", data="x", out="o", split="train", k="auto")
alpha: float = gate.acceptance.alpha
if gate.verdict == "pass" and gate.speed is not None:
    speedup: float = gate.speed.measured.speedup
row: specdec.Segment = gate.segments[0]
loop = specdec.loop_run("LOOP.toml")
if isinstance(loop, specdec.LoopPlan):
    print(loop.stages[0].arguments)
"""


def check_types():
    """Checks that the package and a program that uses it pass mypy's strict checks, and that wrong uses do not."""
    ruff = Path(sys.executable).parent / "ruff"
    if ruff.exists():
        # Git ignores the build folder, which ruff would therefore skip. Generated signatures may be long.
        settings = ["--config", SOURCE / "ruff.toml", "--no-respect-gitignore", "--ignore", "E501"]
        done = subprocess.run([ruff, "check", *settings, PACKAGES / "specdec"], capture_output=True, text=True)
        expect(done.returncode == 0 and "passed" in done.stdout, f"ruff: the generated files, too {done.stdout}")
    mypy = os.environ.get("SPECDEC_MYPY") or shutil.which("mypy")
    if not mypy:
        print("SKIPPED: mypy is not installed (SPECDEC_MYPY may name it)")
        return
    (work / "good.py").write_text(CLIENT)
    wrong = {
        "gate.acceptance.alhpa": "attr-defined",
        'specdec.validate(target="t", data="x", out="o", split="hold")': "arg-type",
        'specdec.validate(target="t", data="x", outt="o")': "call-arg",
        'gate.verdict == "passed"': "comparison-overlap",
    }
    environment = {**os.environ, "MYPYPATH": str(PACKAGES)}

    def complaints(*files):
        command = [mypy, "--strict", "--python-version", "3.10", "--cache-dir", str(work / "mypy"), *files]
        return subprocess.run(command, capture_output=True, text=True, env=environment).stdout

    said = complaints(work / "good.py", PACKAGES / "specdec")
    expect("Success" in said, f"mypy --strict {said}")
    for text, code in wrong.items():
        (work / "wrong.py").write_text(CLIENT + text + "\n")
        expect(f"[{code}]" in complaints(work / "wrong.py"), f"mypy finds {text}")


try:
    check_search()
    check_arguments()
    check_types()
    check_light()
    check_models()
    results = {name for name, s in document["$defs"].items() if s.get("x-commands")}
    rest = results - seen - {"DemoResult", "PackageSignResult", "PackageRollbackResult"}  # tested elsewhere
    expect(not rest, f"{len(seen)} of {len(results)} kinds of results were seen {rest or ''}")
finally:
    shutil.rmtree(work, ignore_errors=True)
