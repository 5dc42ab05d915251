#!/usr/bin/env python3
"""gpu_pack.py TREE PAIR ARCHIVE: makes the archive that is carried to a machine with a GPU.

TREE is the output of `make dist`; the archive has the part that is needed to run, without documents, manual pages and
completion. PAIR is the folder of the models in the archive: the demo's target, a draft distilled from it on this
machine's CPU, and prompts that neither model has seen; they are made once. The archive is a .tar.xz, which Python alone
can unpack, and equal inputs give equal bytes. An archive larger than LIMIT is an error, since the machines that it is
meant for accept no more."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

LIMIT = 32 << 20
ROOT = "specdec-gpu"
RUNNING = ("bin", "libexec", "lib/specdec", "share/specdec/gpu")
SECONDS = "60s"  # duration of the training


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"gpu_pack.py: {' '.join(map(str, words))} ended with exit code {done.returncode}")
    return done.stdout


def make_pair(specdec, target, pair):
    """Writes target, draft and data into the folder `pair`."""
    made = pair.with_name(pair.name + ".made")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)

    def ingest(name, first, count, holdout):
        log = made / f"{name}.jsonl"
        log.write_text(
            run(specdec, "demo", "traffic", "--first", first, "--count", count, "--seed", 1, stdout=subprocess.PIPE)
        )
        run(specdec, "data", "ingest", log, "--target", target, "--out", made / name, "--holdout", holdout)
        log.unlink()

    ingest("training", 0, 3000, 0.06)
    ingest("data", 3000, 200, 0.5)
    words = ["distill", "--target", target, "--data", made / "training", "--draft", "prune:1", "--out", made / "run"]
    run(specdec, *words, "--time-limit", SECONDS, "--dtype", "fp32", "--seed", 1)
    shutil.copytree(target, made / "target")
    shutil.copytree(made / "run" / "draft", made / "draft")
    for name in ("training", "run"):
        shutil.rmtree(made / name)
    for salt in made.glob("*.salt"):  # the secret of redaction must not leave this machine
        salt.unlink()
    shutil.rmtree(pair, ignore_errors=True)
    made.replace(pair)


def add(archive, source, name):
    """Adds a file or folder to the archive without times and owners, which differ from one build to the next."""

    def plain(entry):
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    archive.add(source, arcname=name, recursive=False, filter=plain)
    if source.is_dir() and not source.is_symlink():
        for child in sorted(source.iterdir()):
            add(archive, child, f"{name}/{child.name}")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    tree, pair, path = map(Path, sys.argv[1:])
    if not pair.exists():
        print(f"{pair}: a draft is distilled for {SECONDS}, once")
        make_pair(tree / "bin/specdec", tree / "share/specdec/demo/target", pair)
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for folder in RUNNING:
            add(archive, tree / folder, f"{ROOT}/{folder}")
        add(archive, pair, f"{ROOT}/share/specdec/pair")
    size = path.stat().st_size
    print(f"{path}: {size / (1 << 20):.1f} MiB")
    print(f"there: python3 -m tarfile -e {path.name} /tmp && python3 /tmp/{ROOT}/share/specdec/gpu/run.py --first")
    if size > LIMIT:
        sys.exit(f"gpu_pack.py: {path} is larger than {LIMIT >> 20} MiB")


main()
