"""Compares the monitor's reader of metrics pages with prometheus_client's parser, line by line, on fuzzed pages.

python3 prometheus_client_test.py BUILD_DIR [LINES]

Both must read the same samples, except for DIFFERENCES. Needs prometheus_client (PyPI), and skips without it; `make
nightly PARTS="tools checks"` fetches it. SPECDEC_PAGE_SEED (default 1) seeds the lines."""

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("SKIPPED: no prometheus_client in", sys.executable)
    sys.exit(77)

FIXTURES = Path(__file__).resolve().parent / "fixtures"
# Matches a quoted label value. The patterns in DIFFERENCES are applied to a line in which each quoted text is replaced
# by "".
OUTSIDE = re.compile(r'(?<!\\)"(?:[^"\\]|\\.)*"')

# The allowed differences. Each has a reason, the reader that accepts the line ("client" or "specdec"), and a pattern.
# If the readers differ on a line, one of the patterns must match the line with each quoted text replaced by "".
DIFFERENCES = [
    (
        "prometheus_client takes any text before the braces for a name, and escapes in names of labels",
        "client",
        r"^[^{]*([^\w:{\s]|[^\x00-\x7f]|\S\s+\S)[^{]*\{|^\s*\d|\\\w+\s*=",
    ),
    ("prometheus_client skips empty terms between labels", "client", r"\{\s*,|,\s*,"),
    (
        "prometheus_client needs no blank between the braces and the number, or none at all",
        "client",
        r"\}\S|^\s*\w+\s*$",
    ),
    ("prometheus_client reads the first of several numbers and the last as time", "client", r"\S\s+\S+\s+\S"),
    ("prometheus_client refuses tabs beside blanks between the numbers", "specdec", r"\t"),
    ("prometheus_client refuses an exemplar in this format", "specdec", r"#"),
]


def mutated(line, random):
    """Returns the line with a few random changes, of the kinds that exporters and broken transfers make."""
    pieces = [
        " ",
        "\t",
        ",",
        "{",
        "}",
        '"',
        "\\",
        "=",
        "#",
        "_",
        "1",
        "e",
        "+",
        "-",
        ".",
        "x",
        "NaN",
        "\\n",
        '\\"',
        "é",
        ":",
    ]
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        at = random.randrange(len(line) + 1)
        kind = random.randrange(4)
        if kind == 0:
            line = line[:at] + random.choice(pieces) + line[at:]
        elif kind == 1:
            line = line[:at] + line[at + 1 :]
        elif kind == 2:
            line = re.sub(r'(?<=[{},="])', lambda _: random.choice(("", "", " ", "\t")), line)
        else:
            line = line[:at]
    return line


def composed(random):
    name = random.choice(("vllm:spec_decode_num_drafts_total", "a", "a:b_c", "_x9", "trtllm_generation_tokens_total"))
    value = lambda: random.choice(("a b", "", "0", 'x\\"y', "\\\\", "l\\nm", "{", "}", ",", "=", "#", "é", "1 # {"))
    blank = lambda: random.choice(("", "", " ", "  ", "\t"))
    terms = [
        f'{blank()}{label}{blank()}={blank()}"{value()}"{blank()}'
        for label in random.sample(("engine", "model_name", "position", "le"), random.randrange(4))
    ]
    labels = "{" + ",".join(terms) + random.choice(("", ",") if terms else ("",)) + blank() + "}"
    number = random.choice(
        ("1", "0", "12.5", "1e3", "+4", "-2", "NaN", "+Inf", "-Inf", "1.", ".5", "1E-3", "00", "1e400")
    )
    time = random.choice(("", "", " 1700000000000", "  17"))
    return f"{blank()}{name}{blank()}{random.choice(('', labels, labels))} {blank()}{number}{time}{blank()}"


def lines(count, random):
    fixed = [x for page in sorted(FIXTURES.glob("*.prom")) for x in page.read_text().splitlines() if x and x[0] != "#"]
    made = ["", "   ", "# a comment", "  # another", "\t", "#"]
    while len(made) < count:
        line = random.choice(fixed) if random.random() < 0.5 else composed(random)
        line = mutated(line, random) if random.random() < 0.7 else line
        if not line.lstrip().startswith("#"):  # the monitor skips comments
            made.append(line)
    return made


def theirs(line):
    """Returns the result of prometheus_client: a sample, None if the line has no sample, or the error."""
    try:
        samples = [s for family in text_string_to_metric_families(line + "\n") for s in family.samples]
    except (ValueError, IndexError) as e:
        return f"{type(e).__name__}: {e}"
    return (samples[0].name, samples[0].labels, float(samples[0].value)) if samples else None


def same(ours, client):
    if ours is None or client is None or isinstance(client, str):
        return ours is None and client is None
    equal = ours[2] == client[2] or (math.isnan(ours[2]) and math.isnan(client[2]))
    return equal and ours[:2] == client[:2]


def main():
    count, seed = int(sys.argv[2]) if len(sys.argv) > 2 else 20000, os.environ.get("SPECDEC_PAGE_SEED", "1")
    page = lines(count, random.Random(seed))
    with tempfile.TemporaryDirectory() as work:
        source, result = Path(work, "page"), Path(work, "result")
        source.write_text("".join(line + "\n" for line in page))
        subprocess.run(
            [Path(sys.argv[1], "tests/monitor_test"), "--gtest_filter=Exposition.LinesForPrometheusClient"],
            env={**os.environ, "SPECDEC_PAGE": str(source), "SPECDEC_PAGE_OUT": str(result)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        answers = [json.loads(line) for line in result.read_text().splitlines()]
    assert len(answers) == len(page), (len(answers), len(page))
    equal, known = 0, dict.fromkeys((reason for reason, _, _ in DIFFERENCES), 0)
    for line, answer in zip(page, answers, strict=True):
        ours = (answer["name"], answer["labels"], float(answer["value"])) if "name" in answer else None
        client = theirs(line)
        both_refuse = isinstance(client, str) and answer["problem"]
        if both_refuse or (not answer["problem"] and same(ours, client)):
            equal += 1
            continue
        who = "specdec" if isinstance(client, str) else "client"
        if who == "client" and ours is not None:
            who = "both"
        bare = OUTSIDE.sub('""', line)
        reason = next((r for r, taker, pattern in DIFFERENCES if taker == who and re.search(pattern, bare)), None)
        if reason is None:
            print(f"FAILED (seed {seed}): {line!r}\n  specdec: {answer}\n  prometheus_client: {client}")
            sys.exit(1)
        known[reason] += 1
    samples = sum("name" in a for a in answers)
    print(f"ok: {equal} of {count} lines are read alike (seed {seed}), {samples} of them samples; the others:")
    for reason, n in known.items():
        print(f"  {n:5} {reason}")
    assert samples > count / 4 and equal > 0.8 * count, "most lines must be comparable"


main()
