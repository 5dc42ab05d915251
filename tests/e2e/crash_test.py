"""Kills `specdec distill`, `package` and `data ingest` (`kill -9`) at every change that they make to the file system.
Also runs them under every fault of a file system (tests/e2e/faults.py) and after power cuts. Readers must see either
the old state or the new state. What a command reported as done must survive. The same command, run again, must write
the same bits as an undisturbed run."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from faults import Subject, must, under_faults
from specdec_run import expect, run, specdec
from tiny_model import write_tiny_model, write_traffic

# Keeps the files in memory, where thousands of fsyncs take little time. What a killed process leaves does not depend on
# the disk.
work = Path(tempfile.mkdtemp(prefix="specdec-crash-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
target, data, old_draft, new_draft = (work / name for name in ("target", "data", "old-draft", "new-draft"))
DISTILL = [
    "distill",
    "--target",
    target,
    "--data",
    data,
    "--draft",
    "prune:1",
    "--max-steps",
    3,
    "--checkpoint-every",
    2,
    "--evaluate-every",
    3,
    "--batch-tokens",
    128,
    "--threads",
    1,
    "--seed",
    7,
]


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tree(folder):
    return {str(f.relative_to(folder)): sha256(f) for f in sorted(folder.rglob("*")) if f.is_file()}


def partials(folder):
    return [f for f in folder.rglob("*") if ".partial" in f.name]


# --- distill ---


def check_run(out, n):
    """Checks what readers of a run may rely on at any time: the draft is either complete or absent, and so is each
    checkpoint."""
    draft, result = out / "draft", out / "result.json"
    if draft.exists():
        must(tree(draft).keys() == reference.keys(), f"{n}: the draft lacks files")
        must(
            all(sha == reference[name] for name, sha in tree(draft).items() if name != "specdec.json"),
            f"{n}: the draft differs",
        )
        json.loads((draft / "specdec.json").read_text())
    if result.exists():
        must(
            draft.exists() and json.loads(result.read_text())["training"]["steps"] == 3,
            f"{n}: a result without its draft",
        )
    for checkpoint in (out / "checkpoints").glob("step-????????"):
        state = json.loads((checkpoint / "state.json").read_text())
        must(
            all(sha256(checkpoint / name) == sha for name, sha in state["files"].items()),
            f"{n}: {checkpoint.name} is damaged",
        )
    latest = out / "checkpoints/latest"
    must(
        not latest.exists() or (out / "checkpoints" / latest.read_text().strip()).is_dir(),
        f"{n}: latest names no checkpoint",
    )


def finish_run(out, n):
    code, _, _ = run(*DISTILL, "--out", out, "--resume", "-q", code=code_of_distill, timeout=60)
    must(tree(out / "draft").keys() == reference.keys(), f"{n}: files of the resumed draft")
    must(
        all(sha == reference[name] for name, sha in tree(out / "draft").items() if name != "specdec.json"),
        f"{n}: the resumed draft differs",
    )
    must(figures_of(out) == figures, f"{n}: figures of the resumed run differ")
    must(not partials(out), f"{n}: left over: {partials(out)}")


def figures_of(out):
    """Returns the parts of result.json that do not depend on the clock."""
    result = json.loads((out / "result.json").read_text())
    training = {k: v for k, v in result["training"].items() if k not in ("seconds", "tokens_per_second")}
    return [training, result["verdict"], result["acceptance"], result["draft"]["id"]]


class Distill(Subject):
    name, often = "distill", 4
    reads_below = work

    def __init__(self):
        self.codes = (code_of_distill,)

    def prepare(self, folder):
        pass

    def command(self, folder):
        return [*DISTILL, "--out", folder / "run", "--resume", "-q"]

    def check(self, folder, text):
        check_run(folder / "run", text)

    def done(self, folder, text):
        must(
            (folder / "run/result.json").exists() and tree(folder / "run/draft").keys() == reference.keys(),
            f"{text}: done, and then not there",
        )

    def finish(self, folder, text):
        finish_run(folder / "run", text)


def check_full(code, lines, n, place):
    must(code == 74, f"full disk at write {n}: exit {code}: {lines}")
    errors = [line for line in lines if line.startswith("specdec: error:")]
    must(len(errors) == 1 and errors[0] == lines[-1], f"full disk at write {n}: one last line says it: {lines}")
    refused = n == "tmpfs" and "MiB free" in errors[0]  # full disk detected before the first write
    must(
        str(place) in errors[0] and (refused or "No space left on device" in errors[0]),
        f"full disk at write {n}: file and reason: {errors[0]}",
    )
    return not refused


# --- package ---


def publish(store, draft, *more):
    return [
        "package",
        "--target",
        target,
        "--draft",
        draft,
        "--report",
        work / f"gate-{draft.name}/report.json",
        "--store",
        store,
        "--allow-failed",
        "--name",
        "tiny",
        "--channel",
        "production",
        "-q",
        *more,
    ]


def content(package):
    """Returns the manifest without its time and parent, so that packages that differ only in these compare equal."""
    manifest = json.loads((package / "manifest.json").read_text())
    return json.dumps({k: v for k, v in manifest.items() if k not in ("created", "parent")}, sort_keys=True)


def named(store):
    return store / "packages" / ("sha256-" + (store / "refs/production").read_text().strip())


def check_store(store, n):
    listed = specdec.package_list(store=store).raw
    must(all(p["problem"] == "" for p in listed["packages"]), f"{n}: {listed['packages']}")
    must(
        content(old_package) in [content(Path(p["path"])) for p in listed["packages"]], f"{n}: the old package is gone"
    )
    for package in listed["packages"]:
        specdec.package_verify(package["path"])
    must(content(named(store)) in (content(old_package), content(new_package)), f"{n}: what production names")


def finish_store(store, n):
    for left in [*partials(store)]:
        os.utime(left, (time.time() - 2 * 86400,) * 2)  # left-overs are removed once they are a day old
    run(*publish(store, new_draft))
    must(content(named(store)) == content(new_package), f"{n}: production names the new package")
    must(len(list((store / "packages").iterdir())) == 2, f"{n}: two packages, none twice")
    must(not partials(store), f"{n}: left over: {partials(store)}")
    specdec.package_rollback(store=store, channel="production")
    must(content(named(store)) == content(old_package), f"{n}: the roll-back")


class Package(Subject):
    name = "package"
    reads_below = work

    def prepare(self, folder):
        shutil.copytree(old_store, folder / "store")

    def command(self, folder):
        return publish(folder / "store", new_draft)

    def check(self, folder, text):
        check_store(folder / "store", text)

    def done(self, folder, text):
        must(
            content(named(folder / "store")) == content(new_package),
            f"{text}: done, and production names the old package",
        )

    def finish(self, folder, text):
        finish_store(folder / "store", text)


class InStore(Subject):
    """A `specdec package` command that changes nothing but the store."""

    def __init__(self, *arguments, names=None):
        self.name, self.arguments, self.names = arguments[0], arguments, names

    def prepare(self, folder):
        shutil.copytree(moved_store, folder / "store")

    def command(self, folder):
        return ["package", *self.arguments, "--store", folder / "store", "-q"]

    def check(self, folder, text):
        listed = specdec.package_list(store=folder / "store").raw
        must(all(p["problem"] == "" for p in listed["packages"]), f"{text}: {listed['packages']}")
        for package in listed["packages"]:
            specdec.package_verify(package["path"])
        specdec.package_verify(f"{folder}/store:production")

    def done(self, folder, text):
        must(
            not self.names or named(folder / "store").name == self.names,
            f"{text}: done, and production names {named(folder / 'store').name}",
        )

    def finish(self, folder, text):
        store = folder / "store"
        run("package", *self.arguments, "--store", store, "-q")
        specdec.package_gc(store=store, keep=1, quiet=True)
        specdec.package_verify(f"{store}:production")
        for left in partials(store / "tmp"):
            os.utime(left, (time.time() - 2 * 86400,) * 2)
        specdec.package_gc(store=store, keep=1, quiet=True)
        # If the publication of a package was cut off, its files stay in tmp under a partial name. gc removes them once
        # they are a day old.
        must(not partials(store / "tmp"), f"{text}: left over: {partials(store / 'tmp')}")


# --- ingest ---


class Ingest(Subject):
    name = "ingest"
    reads_below = work

    def prepare(self, folder):
        shutil.copytree(data, folder / "data")

    def command(self, folder):
        return ingest(folder / "data")

    def check(self, folder, text):
        must(tree(folder / "data") in (tree(data), tree(more_data)), f"{text}: neither the old data nor the new")

    def done(self, folder, text):
        must(tree(folder / "data") == tree(more_data), f"{text}: done, and the old data is there")

    def finish(self, folder, text):
        run(*self.command(folder))
        must(tree(folder / "data") == tree(more_data), f"{text}: the data of the second try")


def ingest(out):
    return [
        "data",
        "ingest",
        work / "log.jsonl",
        work / "more.jsonl",
        "--target",
        target,
        "--holdout",
        0.5,
        "--out",
        out,
        "-q",
    ]


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
    specdec.data_ingest(work / "log.jsonl", target=target, holdout=0.5, out=data, quiet=True)
    more_data = work / "more-data"
    run(*ingest(more_data))
    inputs = [tree(target), tree(data)]

    code_of_distill, _, _ = run(*DISTILL, "--out", work / "run", "-q", code=(0, 3, 4))
    reference, figures = tree(work / "run/draft"), figures_of(work / "run")
    checkpoints = sorted(f.name for f in (work / "run/checkpoints").iterdir())
    expect(
        checkpoints == ["latest", "step-00000000", "step-00000002", "step-00000003"], f"a run of 3 steps: {checkpoints}"
    )
    under_faults(Distill(), work)

    shutil.copytree(work / "run/draft", new_draft)
    specdec.distill(target=target, data=data, draft="prune:1", max_steps=1, threads=1, out=work / "old-run", quiet=True)
    shutil.copytree(work / "old-run/draft", old_draft)
    for draft in (old_draft, new_draft):
        gate = {"parts": "acceptance", "contexts": "data", "quiet": True}
        specdec.validate(**gate, target=target, draft=draft, data=data, out=work / f"gate-{draft.name}")
    old_store = work / "old-store"
    run(*publish(old_store, old_draft))
    old_package = named(old_store)
    shutil.copytree(old_store, work / "new-store")
    run(*publish(work / "new-store", new_draft))
    new_package = named(work / "new-store")
    under_faults(Package(), work)
    moved_store = work / "moved-store"  # holds three packages; production names the new one
    shutil.copytree(old_store, moved_store)
    run(*publish(moved_store, new_draft))
    spare = shutil.copytree(new_draft, work / "spare")
    binding = json.loads((spare / "specdec.json").read_text())
    (spare / "specdec.json").write_text(json.dumps(binding | {"loss": "spare"}))
    shutil.copytree(work / f"gate-{new_draft.name}", work / "gate-spare")
    run(*publish(moved_store, spare))
    specdec.package_rollback(store=moved_store, channel="production")
    third = [
        p
        for p in (moved_store / "packages").iterdir()
        if p != named(moved_store) and content(p) != content(old_package)
    ]
    must(len(third) == 1, f"three packages: {third}")
    rolled_back = old_package.name
    for subject in (
        InStore("promote", third[0].name, "--channel", "production", names=third[0].name),
        InStore("rollback", "--channel", "production", "--from", named(moved_store).name, names=rolled_back),
        InStore("pin", third[0].name),
        InStore("gc", "--keep", 1),
    ):
        under_faults(subject, work)
    under_faults(Ingest(), work)
    expect([tree(target), tree(data)] == inputs, "target and data as they were")

    for name, command, options in (
        ("distill", really_full_distill, ["size=332k", *(f"size=16m,nr_inodes={n}" for n in (10, 20, 30))]),
        ("package", really_full_package, [f"size=16m,nr_inodes={n}" for n in range(40, 80, 8)]),
        ("ingest", really_full_ingest, [f"size={kib}k" for kib in range(36, 76, 8)]),
    ):
        full = [on_tmpfs(o, command) for o in options]
        if None in full:
            print(f"SKIPPED: {name} on a full tmpfs: this user may not mount one")
        else:
            expect(
                True in full, f"{name} on a full tmpfs: {full.count(True)} of {len(full)} sizes filled up on the way"
            )
finally:
    shutil.rmtree(work, ignore_errors=True)
