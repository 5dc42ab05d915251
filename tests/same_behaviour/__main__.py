"""Shows that two builds behave the same in everything that a user or another program can observe, for a fixed list of
commands.

    python3 tests/same_behaviour run BUILD OUT  runs the list with BUILD/bin/specdec, keeps what was observed in OUT
    python3 tests/same_behaviour compare A B    prints a unified diff of each file that differs; exit 1 if any does

The tiny models and the logs are made here. Each run has a new scratch folder and no network. Values that differ between
two runs of one build are replaced according to rules.py, where each rule has a reason. Nothing else is replaced:
counts, acceptance, texts, digests of files, modes and messages are kept as they are. A rule must not be wider than its
reason, because it would hide a change."""

import difflib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS / "e2e")]
from same_behaviour import data, distill, generate, loop, monitor, package, serve, start, validate  # noqa: E402
from same_behaviour.observer import Observer  # noqa: E402

PARTS = [
    start.observe_help,
    start.observe_inputs,
    data.observe_data,
    generate.observe_generate,
    distill.observe_distill,
    validate.observe_validate,
    package.observe_package,
    serve.observe_serve,
    monitor.observe_monitor,
    loop.observe_loop,
    loop.observe_init,
]


def run(build, out):
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty")
    os.umask(0o022)
    o = Observer(build, out)
    try:
        for part in PARTS:
            began = time.monotonic()
            part(o)
            print(f"{part.__name__.removeprefix('observe_'):9} {time.monotonic() - began:6.1f} s", flush=True)
        doctor = subprocess.run(
            [str(o.program), "--json", "doctor"], cwd=o.scratch, env=o.environment, capture_output=True, timeout=300
        )
        o.saw(json.loads(doctor.stdout))  # keeps only the keys, because the values describe this machine
        for schema, paths in sorted(o.schemas.items()):
            o.keep(f"schema-{schema.replace('/', '-')}", "\n".join(sorted(paths)) + "\n")
    finally:
        shutil.rmtree(o.scratch, ignore_errors=True)
    print(f"{sum(1 for f in out.rglob('*') if f.is_file())} files in {out}")


def compare(a, b):
    a, b = Path(a), Path(b)
    files = {str(f.relative_to(root)) for root in (a, b) for f in root.rglob("*") if f.is_file()}
    if not files:
        sys.exit("nothing to compare")
    read = lambda file: file.read_text(errors="replace").splitlines(keepends=True) if file.is_file() else []
    differing = 0
    for name in sorted(files):
        if (a / name).is_file() and (b / name).is_file() and (a / name).read_bytes() == (b / name).read_bytes():
            continue
        differing += 1
        sys.stdout.writelines(difflib.unified_diff(read(a / name), read(b / name), str(a / name), str(b / name)))
    print(f"{len(files)} files, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2], sys.argv[3]))
    else:
        sys.exit(__doc__)
