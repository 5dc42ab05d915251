#!/usr/bin/env python3
"""draw_comments.py --seed N [--count 100] [FOLDER…]: draws comments at random from the C++, CUDA, Rust, Python and
CMake sources, so that somebody who has not seen them can say which need a second reading.

Each comment is printed as a whole block, with its place and the lines of code that follow it. A comment beside code is
printed with its own line of code. A block is drawn with the same chance however long it is. Docstrings of Python are
comments, too."""

import argparse
import random
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = {".h": "//", ".cpp": "//", ".cu": "//", ".rs": "//", ".py": "#", ".cmake": "#", "CMakeLists.txt": "#"}
FOLLOWING = 2  # lines of code after a block


def mark_of(file):
    return MARKS.get(Path(file).suffix) or MARKS.get(Path(file).name)


def beside_code(line, mark):
    """Returns whether the line has a comment after code. A mark inside a string does not count."""
    at = line.find("  " + mark + " ")
    before = line[:at]
    closes = re.match(r"\s*}\s*//\s*namespace", line)  # the formatter wrote this comment
    return at > 0 and before.strip() and before.count('"') % 2 == 0 and before.count("'") % 2 == 0 and not closes


def opens_docstring(lines, at):
    """Returns the match of the quotes if the line opens a docstring: a string that follows the line of a def or class,
    or nothing but comments. Other strings of several lines are not comments."""
    before = [line.strip() for line in lines[:at] if line.strip() and not line.startswith("#")]
    is_docstring = not before or before[-1].endswith(":")
    return re.match(r'[rf]?("""|\'\'\')', lines[at].strip()) if is_docstring else None


def says_something(text):
    """Returns whether a comment is more than an instruction to a tool, a separator line or a single letter in a
    table."""
    return re.search(r"[A-Za-z]{2}", text) and not re.match(r"(#|//)\s*(noqa|NOLINT|type:|fmt:)", text)


def blocks(lines, mark):
    """Yields the first and last line (from 0) of each comment."""
    at = 0
    while at < len(lines):
        text = lines[at].strip()
        first = at
        if mark == "#" and (opened := opens_docstring(lines, at)):
            while at < len(lines) and (text.count(opened[1]) < 2 and (at == first or opened[1] not in lines[at])):
                at += 1
            yield first, at
        elif text.startswith(mark) and not text.startswith("#!"):
            while at + 1 < len(lines) and lines[at + 1].strip().startswith(mark):
                at += 1
            if says_something(text):
                yield first, at
        elif beside_code(lines[at], mark) and says_something(text[text.find("  " + mark) + 2 :]):
            yield first, at
        at += 1


def sources(folders):
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, check=True)
    found = listed.stdout.decode().rstrip("\0").split("\0")
    return sorted(f for f in found if mark_of(f) and not re.match("tests/compat/[^/]+/", f))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    options = parser.parse_args()
    found = []
    for file in sources(options.folders):
        lines = (ROOT / file).read_text().splitlines()
        found += [(file, lines, first, last) for first, last in blocks(lines, mark_of(file))]
    drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    for number, (file, lines, first, last) in enumerate(drawn, 1):
        print(f"{number}. {file}:{first + 1}")
        following = [line for line in lines[last + 1 :] if line.strip()][:FOLLOWING]
        print("\n".join([*lines[first : last + 1], *following]), end="\n\n")
    print(f"{len(drawn)} of {len(found)} comments, seed {options.seed}")


main()
