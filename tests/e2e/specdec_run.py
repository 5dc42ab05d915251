"""Runs the real binary for the end-to-end tests. Each test is started by `python3 x_test.py BUILD_DIR`.

Tests call commands that return a result through the build's Python package, `specdec`; run() is for exit codes and for
text that a person reads."""

import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv[1]).resolve()
SPECDEC = BUILD / "bin" / "specdec"
sys.path.insert(0, str(BUILD / "lib/python3/dist-packages"))
specdec = importlib.import_module("specdec")
SHARED = Path(os.environ.get("SPECDEC_SHARED", SOURCE.parent / "shared"))
SKIP = 77  # CTest shows a test that exits with this code as skipped


def need_shared(*paths):
    for path in paths:
        if not (SHARED / path).exists():
            print(f"SKIPPED: {SHARED / path} is not there (SPECDEC_SHARED names the folder of real models and texts)")
            sys.exit(SKIP)


def run(*arguments, code=0, env=None, timeout=600, last_line=()):
    """Runs specdec with these arguments. A single argument is split as by a shell. Fails unless specdec ends with
    `code` and the last line on stderr contains every text of `last_line`."""
    arguments = shlex.split(str(arguments[0])) if len(arguments) == 1 else arguments
    done = subprocess.run(
        [str(SPECDEC), *map(str, arguments)], capture_output=True, timeout=timeout, env={**os.environ, **(env or {})}
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    allowed = code if isinstance(code, (tuple, set, list)) else (code,)
    last = err.strip().splitlines()[-1] if err.strip() else ""
    if done.returncode not in allowed or any(text not in last for text in last_line):
        print("command:", " ".join(map(str, arguments)))
        print(f"exit {done.returncode}, expected {allowed}; last line on stderr must hold {last_line}")
        print("stdout:", out[-2000:], "\nstderr:", err[-2000:])
        sys.exit(1)
    return done.returncode, out, err


def run_json(*arguments, **options):
    arguments = shlex.split(str(arguments[0])) if len(arguments) == 1 else arguments
    code, out, _ = run("--json", *arguments, **options)
    return code, json.loads(out)


def expect(condition, text):
    if not condition:
        print("FAILED:", text)
        sys.exit(1)
    print("ok:", text)
