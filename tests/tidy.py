#!/usr/bin/env python3
"""tidy.py [--since COMMIT | FILE…]: runs clang-tidy with the checks of .clang-tidy (`make tidy`).

Checks the C++ sources outside of tests/: all of them, the given FILEs, or those that differ from COMMIT or include a
header that does. Reads build-dev/compile_commands.json, because the preset dev compiles each file separately; that
build only has to be configured. A file takes about ten seconds of one core, and JOBS files run at a time.

Exits with 1 if clang-tidy found something, and with 2 if it could not run."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build-dev")
CLANG_TIDY = "clang-tidy-19"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout.split()


def with_includers(names):
    """Returns the sources among `names`, and the sources that include a header in `names` directly or indirectly."""
    included = {}
    for name in git("ls-files", "*.cpp", "*.h"):
        with open(os.path.join(ROOT, name), errors="replace") as f:
            for other in INCLUDE.findall(f.read()):
                included.setdefault(other, set()).add(name)
    found, waiting = set(), [name for name in names if name.endswith((".cpp", ".h"))]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(included.get(name, ()) if name.endswith(".h") else ())
    return {name for name in found if name.endswith(".cpp")}


def check(name):
    done = subprocess.run(
        [CLANG_TIDY, "-p", BUILD, "--quiet", os.path.join(ROOT, name)], capture_output=True, text=True, cwd=ROOT
    )
    return name, done.returncode, done.stdout.strip() or done.stderr.strip()


def main():
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    if not shutil.which(CLANG_TIDY):
        print(f"tidy: {CLANG_TIDY} is not installed: apt-get install {CLANG_TIDY}", file=sys.stderr)
        sys.exit(2)
    commands = os.path.join(BUILD, "compile_commands.json")
    if not os.path.exists(commands):
        print(f"tidy: {commands} is missing: cmake --preset dev makes it", file=sys.stderr)
        sys.exit(2)
    with open(commands) as f:
        known = {os.path.relpath(c["file"], ROOT) for c in json.load(f)}
    known = {name for name in known if not name.startswith(("tests/", ".."))}
    if words[:1] == ["--since"] and len(words) == 2:
        wanted = with_includers(git("diff", "--name-only", "--diff-filter=d", words[1]))
    else:
        wanted = {os.path.relpath(os.path.abspath(word), ROOT) for word in words} or set(git("ls-files", "*.cpp"))
        if words and (strangers := wanted - known):
            print(f"tidy: {min(strangers)}: expected a source outside of tests/ that {commands} has", file=sys.stderr)
            sys.exit(2)
    files = sorted(wanted & known)
    begun, findings = time.monotonic(), []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS") or os.cpu_count() or 1)) as pool:
        for n, (name, code, text) in enumerate(pool.map(check, files), 1):
            if code != 0:
                findings.append(name)
                print(text, flush=True)
            if n % 20 == 0 or n == len(files):
                left = (time.monotonic() - begun) / n * (len(files) - n)
                print(f"tidy: {n} of {len(files)} files, {left / 60:.0f} min left", file=sys.stderr, flush=True)
    print(f"tidy: {len(files)} files, " + (f"findings in {len(findings)}" if findings else "nothing found"))
    sys.exit(1 if findings else 0)


main()
