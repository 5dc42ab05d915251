"""`kill -9` at every change that `specdec distill` and `specdec package` make to the file system, and a full disk at every write: readers
see the old or the new and nothing between, and the same command again gives the same bits as if nothing had happened."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from specdec_run import SPECDEC, expect, run, run_json
from tiny_model import write_tiny_model, write_traffic

# In memory: what a killed process leaves does not depend on the disk, and thousands of fsyncs do.
work = Path(tempfile.mkdtemp(prefix="specdec-crash-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
target, data, old_draft, new_draft = (work / name for name in ("target", "data", "old-draft", "new-draft"))
DISTILL = ["distill", "--target", target, "--data", data, "--draft", "prune:1", "--max-steps", 3, "--checkpoint-every", 2, "--evaluate-every", 3,
           "--batch-tokens", 128, "--threads", 1, "--seed", 7]


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tree(folder):
    return {str(f.relative_to(folder)): sha256(f) for f in sorted(folder.rglob("*")) if f.is_file()}


def partials(folder):
    return [f for f in folder.rglob("*") if ".partial" in f.name]


def must(condition, text):
    if not condition:
        print("FAILED:", text)
        sys.exit(1)


def attempt(arguments, variable, n):
    done = subprocess.run([str(SPECDEC), *map(str, arguments)], capture_output=True, timeout=60, env={**os.environ, variable: str(n)})
    return done.returncode, done.stderr.decode(errors="replace").strip().splitlines()


def every_point(point):
    """point(n) for n = 1, 2, … on every core until one of them says that the command ended by itself; how many it took."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(1, 2000, 8):
            ended = list(pool.map(point, range(first, first + 8)))
            if any(ended):
                must(ended == sorted(ended), "points after the end are no points")
                return first + ended.index(True) - 1
    must(False, "the command never ends by itself")


# --- distill ---

def check_run(out, n):
    """What readers of a run may rely on at any time: a draft that is whole or not there, checkpoints likewise."""
    draft, result = out / "draft", out / "result.json"
    if draft.exists():
        must(tree(draft).keys() == reference.keys(), f"point {n}: the draft lacks files")
        must(all(sha == reference[name] for name, sha in tree(draft).items() if name != "specdec.json"), f"point {n}: the draft differs")
        json.loads((draft / "specdec.json").read_text())
    if result.exists():
        must(draft.exists() and json.loads(result.read_text())["training"]["steps"] == 3, f"point {n}: a result without its draft")
    for checkpoint in (out / "checkpoints").glob("step-????????"):
        state = json.loads((checkpoint / "state.json").read_text())
        must(all(sha256(checkpoint / name) == sha for name, sha in state["files"].items()), f"point {n}: {checkpoint.name} is damaged")
    latest = out / "checkpoints/latest"
    must(not latest.exists() or (out / "checkpoints" / latest.read_text().strip()).is_dir(), f"point {n}: latest names no checkpoint")


def finish_run(out, n):
    code, _, _ = run(*DISTILL, "--out", out, "--resume", "-q", code=code_of_distill, timeout=60)
    must(tree(out / "draft").keys() == reference.keys(), f"point {n}: files of the resumed draft")
    must(all(sha == reference[name] for name, sha in tree(out / "draft").items() if name != "specdec.json"), f"point {n}: the resumed draft differs")
    must(figures_of(out) == figures, f"point {n}: figures of the resumed run differ")
    must(not partials(out), f"point {n}: left over: {partials(out)}")
    shutil.rmtree(out)


def figures_of(out):
    """result.json without what depends on the clock."""
    result = json.loads((out / "result.json").read_text())
    training = {k: v for k, v in result["training"].items() if k not in ("seconds", "tokens_per_second")}
    return [training, result["verdict"], result["acceptance"], result["draft"]["id"]]


def kill_distill(n):
    out = work / f"run-{n}"
    code, _ = attempt([*DISTILL, "--out", out, "--resume", "-q"], "SPECDEC_KILL_AT", n)
    must(code in (-9, code_of_distill), f"point {n}: exit {code}")
    check_run(out, n)
    finish_run(out, n)
    return code != -9


def full_distill(n):
    out = work / f"full-{n}"
    code, lines = attempt([*DISTILL, "--out", out, "--resume", "-q"], "SPECDEC_ENOSPC_AT", n)
    if code == code_of_distill:
        return True
    check_full(code, lines, n, out)
    check_run(out, n)
    if n % 4 == 0:
        finish_run(out, n)
    return False


def check_full(code, lines, n, place):
    must(code == 74, f"full disk at write {n}: exit {code}: {lines}")
    errors = [line for line in lines if line.startswith("specdec: error:")]
    must(len(errors) == 1 and errors[0] == lines[-1], f"full disk at write {n}: one last line says it: {lines}")
    refused = n == "tmpfs" and "MiB free" in errors[0]  # seen coming, before the first write
    must(str(place) in errors[0] and (refused or "No space left on device" in errors[0]), f"full disk at write {n}: file and reason: {errors[0]}")
    return not refused


# --- package ---

def publish(store, draft, *more):
    return ["package", "--target", target, "--draft", draft, "--report", work / f"gate-{draft.name}/report.json", "--store", store, "--allow-failed",
            "--name", "tiny", "--channel", "production", "-q", *more]


def content(package):
    """A manifest without what depends on the clock: what makes two packages the same."""
    manifest = json.loads((package / "manifest.json").read_text())
    return json.dumps({k: v for k, v in manifest.items() if k not in ("created", "parent")}, sort_keys=True)


def named(store):
    return store / "packages" / ("sha256-" + (store / "refs/production").read_text().strip())


def check_store(store, n):
    _, listed = run_json("package", "list", "--store", store)
    must(all(p["problem"] == "" for p in listed["packages"]), f"point {n}: {listed['packages']}")
    must(content(old_package) in [content(Path(p["path"])) for p in listed["packages"]], f"point {n}: the old package is gone")
    for package in listed["packages"]:
        run("package", "verify", package["path"])
    must(content(named(store)) in (content(old_package), content(new_package)), f"point {n}: what production names")


def finish_store(store, n):
    for left in [*partials(store)]:
        os.utime(left, (time.time() - 2 * 86400,) * 2)  # left-overs are removed when they are a day old
    run(*publish(store, new_draft))
    must(content(named(store)) == content(new_package), f"point {n}: production names the new package")
    must(len(list((store / "packages").iterdir())) == 2, f"point {n}: two packages, none twice")
    must(not partials(store), f"point {n}: left over: {partials(store)}")
    run("package", "rollback", "--store", store, "--channel", "production")
    must(content(named(store)) == content(old_package), f"point {n}: the roll-back")
    shutil.rmtree(store)


def kill_package(n):
    store = work / f"store-{n}"
    shutil.copytree(old_store, store)
    code, _ = attempt(publish(store, new_draft), "SPECDEC_KILL_AT", n)
    must(code in (-9, 0), f"point {n}: exit {code}")
    check_store(store, n)
    finish_store(store, n)
    return code == 0


def kill_store(n, *arguments):
    """One kill point of a command that changes nothing but the store."""
    store = work / f"moved-{arguments[0]}-{n}"
    shutil.copytree(moved_store, store)
    code, _ = attempt(["package", *arguments, "--store", store, "-q"], "SPECDEC_KILL_AT", n)
    must(code in (-9, 0), f"{arguments[0]}, point {n}: exit {code}")
    _, listed = run_json("package", "list", "--store", store)
    must(all(p["problem"] == "" for p in listed["packages"]), f"{arguments[0]}, point {n}: {listed['packages']}")
    for package in listed["packages"]:
        run("package", "verify", package["path"])
    run("package", "verify", f"{store}:production")
    run("package", *arguments, "--store", store, "-q")
    run("package", "gc", "--store", store, "--keep", 1, "-q")
    run("package", "verify", f"{store}:production")
    # What died on its way to a channel carries the suffix, and goes when it is a day old.
    must(not partials(store / "tmp"), f"{arguments[0]}, point {n}: left over: {partials(store / 'tmp')}")
    shutil.rmtree(store)
    return code == 0


def full_package(n):
    store = work / f"full-store-{n}"
    shutil.copytree(old_store, store)
    code, lines = attempt(publish(store, new_draft), "SPECDEC_ENOSPC_AT", n)
    if code != 0:
        check_full(code, lines, n, store)
    check_store(store, n)
    finish_store(store, n)
    return code == 0


# --- ingest ---

def full_ingest(n):
    out = work / f"data-{n}"
    shutil.copytree(data, out)
    code, lines = attempt(ingest(out), "SPECDEC_ENOSPC_AT", n)
    if code != 0:
        check_full(code, lines, n, work)
        must(tree(out) == tree(data), f"write {n}: the old data is not intact")
        run(*ingest(out))
    must(tree(out) == tree(more_data), f"write {n}: the data of the second try")
    shutil.rmtree(out)
    return code == 0


def ingest(out):
    return ["data", "ingest", work / "log.jsonl", work / "more.jsonl", "--target", target, "--holdout", 0.5, "--out", out, "-q"]


# --- a file system that is really full ---

def on_tmpfs(options, command):
    place = work / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "specdec", place], capture_output=True)
    if mounted.returncode != 0:
        place.rmdir()
        return None
    try:
        return command(place)
    finally:
        subprocess.run(["umount", place], check=True)
        place.rmdir()


def grow(place):
    subprocess.run(["mount", "-o", "remount,size=16m,nr_inodes=10000", place], check=True)


def on_really_full(place, out, command, success, check, finish):
    code, _, err = run(*command, code=(74, success))
    check(out, "tmpfs")
    met = code == 74 and check_full(code, err.strip().splitlines(), "tmpfs", place)
    grow(place)
    finish(out, "tmpfs")
    return met


def really_full_distill(place):
    command = [*DISTILL, "--out", place / "run", "--resume", "-q"]
    return on_really_full(place, place / "run", command, code_of_distill, check_run, finish_run)


def really_full_package(place):
    shutil.copytree(old_store, place / "store")
    return on_really_full(place, place / "store", publish(place / "store", new_draft), 0, check_store, finish_store)


def really_full_ingest(place):
    shutil.copytree(data, place / "data")
    code, _, err = run(*ingest(place / "data"), code=(74, 0))
    met = code == 74 and check_full(code, err.strip().splitlines(), "tmpfs", place)
    must(code == 0 or tree(place / "data") == tree(data), "tmpfs: the old data is not intact")
    grow(place)
    run(*ingest(place / "data"))
    must(tree(place / "data") == tree(more_data), "tmpfs: the data of the second try")
    return met


try:
    write_tiny_model(target, layers=2, seed=1)
    write_traffic(work / "log.jsonl", 24)
    write_traffic(work / "more.jsonl", 24, seed=2)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--holdout", 0.5, "--out", data, "-q")
    more_data = work / "more-data"
    run(*ingest(more_data))
    inputs = [tree(target), tree(data)]

    code_of_distill, _, _ = run(*DISTILL, "--out", work / "run", "-q", code=(0, 3, 4))
    reference, figures = tree(work / "run/draft"), figures_of(work / "run")
    checkpoints = sorted(f.name for f in (work / "run/checkpoints").iterdir())
    expect(checkpoints == ["latest", "step-00000000", "step-00000002", "step-00000003"], f"a run of 3 steps: {checkpoints}")
    started = time.monotonic()
    points = every_point(kill_distill)
    print(f"ok: distill killed at each of its {points} changes of the file system and resumed to the same bits, {time.monotonic() - started:.0f} s")
    started = time.monotonic()
    points = every_point(full_distill)
    print(f"ok: distill on a full disk at each of its {points} writes, every fourth resumed, {time.monotonic() - started:.0f} s")

    shutil.copytree(work / "run/draft", new_draft)
    run("distill", "--target", target, "--data", data, "--draft", "prune:1", "--max-steps", 1, "--threads", 1, "--out", work / "old-run", "-q", code=(0, 3, 4))
    shutil.copytree(work / "old-run/draft", old_draft)
    for draft in (old_draft, new_draft):
        run("validate", "--target", target, "--draft", draft, "--data", data, "--out", work / f"gate-{draft.name}", "--parts", "acceptance",
            "--contexts", "data", "-q", code=(0, 3, 4, 6))
    old_store = work / "old-store"
    run(*publish(old_store, old_draft))
    old_package = named(old_store)
    shutil.copytree(old_store, work / "new-store")
    run(*publish(work / "new-store", new_draft))
    new_package = named(work / "new-store")
    started = time.monotonic()
    points = every_point(kill_package)
    print(f"ok: package killed at each of its {points} changes of the file system, {time.monotonic() - started:.0f} s")
    moved_store = work / "moved-store"  # production names the new package and knows the old one; a third is garbage
    shutil.copytree(old_store, moved_store)
    run(*publish(moved_store, new_draft))
    spare = shutil.copytree(new_draft, work / "spare")
    binding = json.loads((spare / "specdec.json").read_text())
    (spare / "specdec.json").write_text(json.dumps(binding | {"loss": "spare"}))
    shutil.copytree(work / f"gate-{new_draft.name}", work / "gate-spare")
    run(*publish(moved_store, spare))
    run("package", "rollback", "--store", moved_store, "--channel", "production")
    third = [p for p in (moved_store / "packages").iterdir() if p != named(moved_store) and content(p) != content(old_package)]
    must(len(third) == 1, f"three packages: {third}")
    started = time.monotonic()
    counts = {command[0]: every_point(lambda n, command=command: kill_store(n, *command)) for command in (
        ("promote", third[0].name, "--channel", "production"), ("rollback", "--channel", "production", "--from", named(moved_store).name), ("pin", third[0].name), ("gc", "--keep", 1))}
    expect(sum(counts.values()) >= 35, "enough points")
    print(f"ok: the store's commands killed at each of their changes of the file system: {counts}, {time.monotonic() - started:.0f} s")
    points = every_point(full_package)
    print(f"ok: package on a full disk at each of its {points} writes")
    points = every_point(full_ingest)
    print(f"ok: ingest on a full disk at each of its {points} writes")
    expect([tree(target), tree(data)] == inputs, "target and data as they were")

    for name, command, options in (
            ("distill", really_full_distill, ["size=332k", *(f"size=16m,nr_inodes={n}" for n in (10, 20, 30))]),
            ("package", really_full_package, [f"size=16m,nr_inodes={n}" for n in range(40, 80, 8)]),
            ("ingest", really_full_ingest, [f"size={kib}k" for kib in range(36, 76, 8)])):
        full = [on_tmpfs(o, command) for o in options]
        if None in full:
            print(f"SKIPPED: {name} on a full tmpfs: this user may not mount one")
        else:
            expect(True in full, f"{name} on a full tmpfs: {full.count(True)} of {len(full)} sizes filled up on the way")
finally:
    shutil.rmtree(work, ignore_errors=True)
