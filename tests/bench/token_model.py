#!/usr/bin/env python3
"""token_model.py FOLDER…: prints the two tables of data/redact/token_surprise.cpp, made of the words and identifiers of
the texts below the folders (../shared/data and the folders of this repository). A word counts 1 + ln(how often it
occurs), so that identifiers have some weight beside frequent words. The tables hold costs in units of half a bit,
written as letters ('A' = 0)."""

import collections
import gzip
import json
import math
import os
import re
import string
import sys

RUN = re.compile(r"[A-Za-z0-9+/_\-]{2,}")
LETTERS = string.ascii_lowercase


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def read(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", errors="replace") as f:
        whole = f.read()
    name = path.removesuffix(".gz")
    if name.endswith((".jsonl", ".json")):
        for row in whole.splitlines() if name.endswith(".jsonl") else [whole]:
            try:
                yield from texts(json.loads(row))
            except ValueError:  # files of tests may be broken on purpose
                pass
    elif name.endswith((".txt", ".md", ".cpp", ".h", ".py", ".rs", ".cmake", ".yml", ".js", ".html")):
        yield whole


def kind(c):
    return 0 if c.islower() else 1 if c.isupper() else 2 if c.isdigit() else 3


def cost(count, total, outcomes):
    bits = -math.log2((count + 2) / (total + 2 * outcomes))
    return chr(ord("A") + min(25, round(2 * bits)))


def main():
    words = collections.Counter()
    for folder in sys.argv[1:]:
        for directory, names, files in os.walk(folder):
            names[:] = [
                n
                for n in names
                if not n.startswith((".", "build"))
                and n not in ("models", "tokenizers", "llama2-tokenizer", "tokenizer-conformance")
            ]
            for file in files:
                for text in read(os.path.join(directory, file)):
                    words.update(RUN.findall(text))
    letters, kinds = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    for word, n in words.items():
        weight = 1 + math.log(n)
        for before, c in zip("^" + word, word):
            if before != "^":
                kinds[kind(before)][kind(c)] += weight
            if kind(c) < 2:
                letters[before.lower() if before.isalpha() else "^"][c.lower()] += weight
    print("constexpr char kLetterCosts[27][27] = {")
    for before in "^" + LETTERS:
        print(
            '    "'
            + "".join(cost(letters[before][c], sum(letters[before].values()), 26) for c in LETTERS)
            + f'",  // {before}'
        )
    print(
        "};\nconstexpr char kKindCosts[4][5] = {"
        + ", ".join(
            '"' + "".join(cost(kinds[a][b], sum(kinds[a].values()), 4) for b in range(4)) + '"' for a in range(4)
        )
        + "};"
    )


main()
