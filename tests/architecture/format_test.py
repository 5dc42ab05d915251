#!/usr/bin/env python3
"""format_test.py [--apply]: checks that clang-format and ruff would leave every file of the tree unchanged, that ruff
and shellcheck report nothing about its Python and shell files, and that no line of Rust is too long. With --apply
(`make format`) it formats the files instead, Rust with rustfmt where there is one."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORMATTERS = os.path.dirname(sys.executable)  # the Python environment that cmake/requirements.txt pins
# Files that released versions of specdec wrote: one folder for each version in tests/compat.
GENERATED = re.compile("tests/compat/[^/]+/")
CXX = (".h", ".cuh", ".cpp", ".cu")
SKIPPED = 77
COLUMNS = 120  # for Rust; the other formatters have it in their settings


def files():
    """Returns the paths of all files of the tree, relative to its root. Without git (in a source archive) build folders
    are left out by name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode == 0:
        found = listed.stdout.decode().rstrip("\0").split("\0")
    else:
        found = []
        for folder, below, names in os.walk(ROOT):
            if folder == ROOT:
                below[:] = [name for name in below if not name.startswith(("build", "dist", ".git"))]
            below[:] = [name for name in below if name not in ("target", "__pycache__")]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(f for f in found if not GENERATED.match(f) and os.path.isfile(os.path.join(ROOT, f)))


def is_shell(file):
    if file.endswith(".sh"):
        return True
    if "." in os.path.basename(file):
        return False
    with open(os.path.join(ROOT, file), "rb") as f:
        return f.readline(100).rstrip() in (b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh")


def run(tool, arguments):
    """Returns what the tool printed if it failed, else an empty string."""
    done = subprocess.run([os.path.join(FORMATTERS, tool), *arguments], cwd=ROOT, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip() if done.returncode != 0 else ""


def run_in_parts(tool, arguments, found):
    """Runs a tool that handles one file at a time, with the files divided among all cores. Returns the output of the
    runs that failed."""
    parts = os.cpu_count() or 1
    with ThreadPoolExecutor(parts) as pool:
        said = pool.map(lambda at: run(tool, [*arguments, *found[at::parts]]) if found[at::parts] else "", range(parts))
    return "\n".join(text for text in said if text)


def rustfmt(files, apply):
    """Returns an error for each line that is too long. Does not report what rustfmt would change: its version is not
    pinned, and not every Rust installation has it."""
    said = []
    if apply and shutil.which("rustfmt"):
        subprocess.run(["rustfmt", "--config-path", "rust", "--edition", "2021", *files], cwd=ROOT)
    for file in files:
        with open(os.path.join(ROOT, file), encoding="utf-8") as lines:
            long = [n for n, line in enumerate(lines, 1) if len(line.rstrip("\n")) > COLUMNS]
        said += [f"{file}:{n}: more than {COLUMNS} columns" for n in long]
    return "\n".join(said)


def main():
    apply = sys.argv[1:] == ["--apply"]
    if sys.argv[1:] not in ([], ["--apply"]):
        sys.exit(__doc__)
    missing = [
        tool for tool in ("clang-format", "ruff", "shellcheck") if not os.path.exists(os.path.join(FORMATTERS, tool))
    ]
    if missing:
        print(f"SKIPPED: {' and '.join(missing)} not found in {FORMATTERS}: cmake/setup.sh installs them")
        return SKIPPED
    found = files()
    cxx = [f for f in found if f.endswith(CXX)]
    python = [f for f in found if f.endswith(".py")]
    rust = [f for f in found if f.endswith(".rs")]
    shell = [f for f in found if is_shell(f)]
    said = [
        run_in_parts("clang-format", ["-i"] if apply else ["--dry-run", "-Werror"], cxx),
        run("ruff", ["format", "--quiet", *([] if apply else ["--check"]), *python]),
        run("ruff", ["check", "--quiet", *(["--fix"] if apply else []), *python]),
        run("shellcheck", shell),
        rustfmt(rust, apply),
    ]
    print(f"{len(cxx)} C++, {len(python)} Python, {len(rust)} Rust and {len(shell)} shell files")
    said = [text for text in said if text]
    if not said:
        return 0
    print("\n".join(said))
    print("\nFAILED: `make format` mends what can be mended without a person")
    return 1


sys.exit(main())
