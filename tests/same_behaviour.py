"""Shows that two builds behave the same in everything that a user or another program can observe of a fixed list of
commands.

    python3 tests/same_behaviour.py run BUILD OUT  runs the list with BUILD/bin/specdec, keeps what was observed in OUT
    python3 tests/same_behaviour.py compare A B    prints a unified diff of each file that differs; exit 1 if any does

The tiny models and the logs are made here. Each run has a scratch folder of its own and no network. What differs
between two runs of the same build is replaced by the rules below, each with its reason. Nothing else is replaced:
counts, acceptance, texts, digests of files, modes and messages are kept as they are. A rule that is wider than its
reason would hide a change."""

import contextlib
import datetime
import difflib
import hashlib
import http.client
import http.server
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "tests/e2e"))
from tiny_model import VOCAB, write_tiny_model, write_traffic  # noqa: E402

# --------------------------------------------------------------------------------------------------------------- rules

# Values in JSON: (files, path of the key with [] for a list's items, replacement, reason). Only numbers, booleans and
# null are replaced, so that a change of type is seen, except where the replacement says that the whole value is
# replaced.
JSON_RULES = [
    (r"", r"(^|\.)(seconds|prompt_seconds|elapsed_seconds|training_seconds)$", "<seconds>", "a duration"),
    (r"", r"(^|\.)teacher_share$", "<share>", "a share of a duration"),
    (r"", r"(^|\.)tokens_per_second$", "<speed>", "a speed of this machine"),
    (
        r"^(validate|loop)",
        r"^speed\.(draft_cost|predicted|prediction_fits|verify_cost(_table)?\..*|table\[\]\.speedup|measured\.(speedup|ci\[\]))$",
        "<speed>",
        "measured times of steps and what is computed from them",
    ),
    (
        r"^(validate|loop)",
        r"^speed\.machine\.(busy|cpus|disagreeing|disturbed|others_cpus|runs|stolen_cpus|taken)$",
        "<machine>",
        "what else the machine did",
    ),
    (
        r"^(validate|loop)",
        r"^speed\.(schedule|schedule_figures|break_even)$",
        "<whole: speed>",
        "follows from the speeds, the number of rows too",
    ),
    (r"^bench", r"^rows\[\]\.(speedup|ttft_ms|itl_ms\..*|predicted_speedup|ci\[\])$", "<speed>", "measured times"),
    (r"^bench", r"^rows\[\]\.memory_bytes$", "<memory>", "resident memory of the process"),
    (
        r"^bench",
        r"^(machine|verdict|reason|ranking|verify_cost.*|draft_cost.*|costs|drafts\[\]\.(draft_cost|verify_cost.*))$",
        "<whole: speed>",
        "verdict and costs of bench are speeds alone",
    ),
    (
        r"^distill-run/checkpoints/.*/state.json$",
        r"^digest$",
        "<whole: digest>",
        "covers the seconds of the training so far; the digests of the checkpoint's files stay",
    ),
    (
        r"^monitor-drift",
        r"^actions\[\]\.key$",
        "<whole: key>",
        "that of a webhook covers the URL with its port; the others are kept in the rows of the state",
    ),
    (
        r"^http",
        r"^metrics\.(queued|prefill|decode|time|.*_seconds|.*_ms|.*_time).*$",
        "<seconds>",
        "durations of one answer",
    ),
]

# Texts, after the JSON rules: (files, pattern, replacement, reason).
TEXT_RULES = [
    (r"", r"of [0-9.]+ [KMGT]iB available", "of <memory> available", "free memory of this machine"),
    (r"", r"\btook( +)[0-9.]+ m?s\b", r"took\1<seconds>", "a duration"),
    (
        r"",
        r"\b(chatcmpl|cmpl|req)-[0-9a-f]{32}\b",
        r"\1-<id>",
        "ids of requests are random so that nobody can guess them",
    ),
    (r"", r"tmp/[0-9A-Za-z._-]{6,}", "tmp/<temporary>", "names of temporary files are random"),
    (r"^(generate|help)", r"in [0-9.]+ s \([0-9]+ / s\)", "in <seconds> s (<speed> / s)", "a duration and a speed"),
    (r"^distill-run/.lock$", r"^[0-9]+$", "<pid>", "the process that wrote it"),
    (
        r"^serve-",
        r"draft [0-9.e-]+ ms/token, verify [0-9.e-]+ ms at K = 0 and [0-9.e-]+ ms at",
        "draft <time> ms/token, verify <time> ms at K = 0 and <time> ms at",
        "measured costs",
    ),
    (
        r"^serve-",
        r"expected [0-9]+ tok/s at K = ([0-9]+) against [0-9]+ plain",
        r"expected <speed> tok/s at K = \1 against <speed> plain",
        "speeds that follow from them",
    ),
    (r"^package", r"\buid [0-9]+@[^\"\s]+", "uid <uid>@<host>", "who promoted, and where"),
    (
        r"^serve-recorded",
        r"-20[0-9]{6}T[0-9]{6}Z-[0-9]+-",
        "-<time>-<pid>-",
        "names of record files: when and by which process",
    ),
    (r"^monitor-.*sql$", r"'[0-9]+:[0-9]+'", "'<device:inode>'", "a file is known by its inode"),
    (
        r"^monitor-.*sql$",
        r"(VALUES\([0-9]+,)'[0-9a-f]{64}'(,'webhook')",
        r"\1'<key>'\2",
        "covers the URL with its port",
    ),
    (r"^monitor-posted", r'("endsAt": )"[^"]*"', r'\1"<later>"', "four hours after the check"),
    (
        r"^monitor-served.sql$",
        r"('<device:inode>',)'[0-9a-f]{64}'",
        r"\1'<digest>'",
        "of the beginning of a file of records, which holds times",
    ),
    (
        r"^(distill|loop)",
        r"events\.out\.tfevents\.\S+",
        "events.out.tfevents.<time>.<host>.<pid>",
        "TensorBoard's name of the file: time, host and process",
    ),
    (r"^distill", r"\| [0-9]+ tokens/s, step", "| <speed> tokens/s, step", "a speed"),
    (r"^distill-run/report.html", r"[0-9]+ tokens/s", "<speed> tokens/s", "a speed"),
    (r"^validate-all.*junit", r'time="[0-9.]+"', 'time="<seconds>"', "a duration"),
    (r"^validate-.*junit", r'time="[0-9.e-]+"', 'time="<seconds>"', "a duration"),
    (r"^data", r"(?m)^(ingest|stats|audit) .*( ETA .*)\n", "", "a line of progress, which only a slow run shows"),
    (r"^data", r"(?m)^(ingest|stats|audit)(  .* in )[0-9.]+s", r"\1\2<seconds>", "a duration"),
    (r"^loop", r"\bin [0-9.]+ (ms|s|min)\b", "in <seconds>", "a duration of a stage"),
]


class Normaliser:
    """Applies the rules, and replaces the texts that are learnt during the run: the scratch folder, ports, digests of
    packages."""

    def __init__(self, scratch, build, version):
        self.began = time.time() - 2
        self.learnt = []
        self.learn(str(scratch), "<scratch>")  # every run has another folder
        self.learn(str(build), "<build>")
        self.version = re.compile(
            rf"(?<![0-9.]){re.escape(version)}(?![0-9]|\.[0-9])"
        )  # matches the tool's version, but not "0.1.0" inside of "10.0.1.0"
        self.json_rules = [(re.compile(f), re.compile(k), r) for f, k, r, _ in JSON_RULES]
        self.text_rules = [(re.compile(f), re.compile(p), r) for f, p, r, _ in TEXT_RULES]

    def learn(self, text, name):
        self.learnt.append((text, name))

    def learn_digest(self, digest, name):
        """Learns a digest that depends on a time, such as a package's (the manifest says when the package was made).
        Also learns the short forms in which the digest is shown."""
        for length in (64, 16, 12, 8):
            self.learn(digest[:length], f"<{name}{'' if length == 64 else ':' + str(length)}>")

    def is_now(self, seconds):
        """Returns whether this is a time of this run. Only such times are replaced; times of given logs stay."""
        return self.began <= seconds <= time.time() + 2

    def value(self, file, value, path=""):
        for files, key, replacement in self.json_rules:
            if path and files.search(file) and key.search(path):
                if replacement.startswith("<whole: "):
                    return "<" + replacement.removeprefix("<whole: ")
                if value is None or isinstance(value, (bool, int, float)):
                    return replacement
        if isinstance(value, dict):
            return {k: self.value(file, v, f"{path}.{k}" if path else k) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(file, v, path + "[]") for v in value]
        return value

    def text(self, file, text):
        for old, new in self.learnt:
            text = text.replace(old, new)
        text = self.version.sub("<version>", text)
        iso = r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|&#58;|\+00:00)?"
        text = re.sub(
            iso,
            lambda m: "<now>" if self.is_now_text(m[0]) else m[0],
            text.replace("&#58;", ":") if file.endswith(".md") else text,
        )
        text = re.sub(
            r"(?<![0-9A-Fa-f.])(1[0-9]{9})([0-9]{3}|[0-9]{6}|[0-9]{9})?(\.[0-9]+)?(?![0-9A-Fa-f])",
            lambda m: "<now>" if self.is_now(int(m[1])) else m[0],
            text,
        )
        for files, pattern, replacement in self.text_rules:
            if files.search(file):
                text = pattern.sub(replacement, text)
        return text

    def is_now_text(self, text):
        digits = [int(d) for d in re.findall(r"\d+", text)][:6]
        seconds = datetime.datetime(*digits, tzinfo=datetime.UTC).timestamp()
        return self.began - (60 if len(digits) < 6 else 0) <= seconds <= time.time() + 2

    def json(self, file, value):
        return json.dumps(self.value(file, value), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def any(self, file, text):
        """Normalises JSON (one object, one per line, or inside a page) to sorted keys with one key per line, so that a
        diff names the key. Other texts stay as they are."""
        if file.endswith(".html"):
            return self.text(
                file,
                re.sub(
                    r'(?s)(<script type="application/json"[^>]*>)(.*?)(</script>)',
                    lambda m: m[1] + self.json(file, json.loads(m[2])) + m[3],
                    text,
                ),
            )
        try:
            return self.text(file, self.json(file, json.loads(text)))
        except ValueError:
            pass
        lines = text.splitlines()
        try:
            objects = [json.loads(line) for line in lines]
            if objects and all(isinstance(o, dict) for o in objects):
                return self.text(file, "".join(self.json(file, o) for o in objects))
        except ValueError:
            pass
        return self.text(file, text)


# ------------------------------------------------------------------------------------------------------------- running


class Observer:
    def __init__(self, build, out):
        self.build, self.out = Path(build).resolve(), Path(out).resolve()
        self.program = self.build / "bin/specdec"
        self.scratch = Path(tempfile.mkdtemp(prefix="specdec-same-"))
        keep = {
            k: v
            for k, v in os.environ.items()
            if not re.match(r"SPECDEC_|HF_|XDG_|AWS_|OMP_|LC_|LANG|COLUMNS|OPENAI", k) or k == "SPECDEC_TORCH_LIB"
        }
        self.environment = {
            **keep,
            "HOME": str(self.scratch),
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{self.program.parent}:{os.environ.get('PATH', '')}",
        }
        version = subprocess.run(
            [self.program, "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        self.normaliser = Normaliser(self.scratch, self.build, version)
        self.schemas = {}

    def keep(self, name, text):
        file = self.out / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.normaliser.any(name, text))

    def run(self, name, *arguments, stdin=None, err=True, env=None, learn=None):
        """Runs specdec in the scratch folder and keeps command, exit code, stdout and, unless it shows progress,
        stderr. Returns stdout. `learn` sees stdout before it is kept and may teach the normaliser digests that cover a
        time or the scratch folder."""
        arguments = [str(a) for a in arguments]
        done = subprocess.run(
            [str(self.program), *arguments],
            cwd=self.scratch,
            env={**self.environment, **(env or {})},
            input=stdin,
            stdin=None if stdin else subprocess.DEVNULL,
            capture_output=True,
            timeout=900,
        )
        out, told = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        n = self.normaliser
        if learn:
            learn(out)
        text = n.text(name, f"$ specdec {' '.join(arguments)}\nexit {done.returncode}\n--- stdout\n") + n.any(name, out)
        text += "--- stderr\n" + n.text(name, told) if err else ""
        file = self.out / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return out

    def run_json(self, name, *arguments, **options):
        out = self.run(name, "--json", *arguments, **options)
        with contextlib.suppress(ValueError):
            result = json.loads(out)
            self.saw(result)
            return result
        return {}

    def saw(self, result):
        """Adds the paths and types of a JSON document to those that its schema had in this run."""

        def paths(value, path):
            if isinstance(value, dict):
                for key, inner in value.items():
                    # Keys that are data, such as numbers, names of files and reasons, are not part of the schema.
                    yield from paths(inner, f"{path}.{key if re.fullmatch('[a-zA-Z_][a-zA-Z_0-9]*', key) else '*'}")
            elif isinstance(value, list):
                for inner in value:
                    yield from paths(inner, path + "[]")
            else:
                kind = (
                    "number"
                    if isinstance(value, (int, float)) and not isinstance(value, bool)
                    else type(value).__name__
                )
                yield f"{path} {kind}"

        if isinstance(result, dict) and isinstance(result.get("schema"), str):
            self.schemas.setdefault(result["schema"], set()).update(paths(result, ""))

    def keep_tree(self, name, folder, texts=True, binaries=True, omit=()):
        """Keeps all files below `folder` with their modes: texts as they are, other files as their digest."""
        root, lines = self.scratch / folder, []
        for file in sorted(root.rglob("*"), key=lambda f: self.normaliser.text(name, str(f))):
            relative = str(file.relative_to(root))
            if file.is_symlink():
                lines.append(f"link {relative} -> {os.readlink(file)}")
                continue
            mode = oct(file.stat().st_mode & 0o7777)[2:]
            if file.is_dir():
                lines.append(f"{mode} {relative}/")
                continue
            data = file.read_bytes()
            if any(re.search(o, relative) for o in omit):
                lines.append(f"{mode} {relative}")
                continue
            try:
                text = data.decode()
                if "\0" in text:
                    raise ValueError
                lines.append(f"{mode} {relative}")
                if texts:
                    self.keep(f"{name}/{self.normaliser.text(name, relative)}", text)
                    for line in (
                        [text]
                        if relative.endswith(".json")
                        else text.splitlines()
                        if relative.endswith(".jsonl")
                        else []
                    ):
                        with contextlib.suppress(ValueError):
                            self.saw(json.loads(line))
            except ValueError:
                lines.append(f"{mode} {relative} {hashlib.sha256(data).hexdigest() if binaries else ''}")
        self.keep(f"{name}.tree", "\n".join(lines) + "\n")

    def keep_database(self, name, file):
        """Keeps structure and rows as SQL. A text rule replaces the inodes under which positions in files are kept."""
        with contextlib.closing(sqlite3.connect(f"file:{self.scratch / file}?mode=ro", uri=True)) as db:
            rows = [
                f"PRAGMA {p} = {db.execute(f'PRAGMA {p}').fetchone()[0]}"
                for p in ("user_version", "application_id", "journal_mode")
            ]
            rows += list(db.iterdump())
        self.keep(name, "\n".join(rows) + "\n")


def next_second():
    """Waits for the next second, because packages and promotions are ordered by the second in which they were made."""
    time.sleep(1.02 - time.time() % 1)


# ------------------------------------------------------------------------------------------------------------ the list

COMMANDS = [
    "generate",
    "data",
    "data ingest",
    "data stats",
    "data audit",
    "data regenerate",
    "distill",
    "validate",
    "bench",
    "package",
    "package verify",
    "package sign",
    "package quantise",
    "package lint",
    "package list",
    "package promote",
    "package rollback",
    "package gc",
    "package pin",
    "package unpin",
    "package push",
    "package pull",
    "serve",
    "monitor",
    "monitor check",
    "monitor watch",
    "monitor status",
    "monitor report",
    "monitor baseline",
    "loop",
    "loop run",
    "init",
    "demo",
    "demo traffic",
    "fetch",
    "doctor",
    "completion",
]


def observe_help(o):
    o.run("help", "--help")
    o.run("version", "--version")
    for command in COMMANDS:
        o.run(f"help-{command.replace(' ', '-')}", *command.split(), "--help")
    for shell in ("bash", "zsh", "fish"):
        o.run(f"completion-{shell}", "completion", shell)
    o.run("demo-traffic", "demo", "traffic", "--count", 3)
    for name, arguments in {
        "no-command": [],
        "unknown-command": ["distil"],
        "unknown-flag": ["generate", "--targte", "x"],
        "missing-flag": ["generate"],
        "bad-number": ["generate", "--target", "target", "--max-tokens", "many"],
        "bad-json-log": ["--log-format", "xml", "doctor"],
    }.items():
        o.run(f"usage-{name}", *arguments)
    (o.scratch / "wrong.toml").write_text("[serve]\nprot = 1\n")
    o.run("usage-config", "--config", "wrong.toml", "serve", "--target", "target")
    o.run("usage-environment", "monitor", "status", env={"SPECDEC_MONITOR_STATUS_STATE": "no-such.db"})
    # Keeps the names on which other programs rely, as they occur in the binaries: schemas, settings, metrics.
    found = set()
    for program in [o.program, *sorted((o.build / "libexec").glob("specdec-engine"))]:
        data = program.read_bytes()
        for pattern in (rb"specdec\.[a-z_-]+/[0-9]*", rb"specdec:[a-z_]+", rb"SPECDEC_[A-Z_]+"):
            found.update(name.decode() for name in re.findall(pattern, data))
    o.keep("names-in-the-programs", "\n".join(sorted(found)) + "\n")
    home = re.search(r"CMAKE_HOME_DIRECTORY:INTERNAL=(.*)", (o.build / "CMakeCache.txt").read_text())
    if home and (document := Path(home[1]) / "docs/openapi.json").exists():
        o.keep("openapi.json", document.read_text())


def observe_inputs(o):
    write_tiny_model(o.scratch / "target", layers=2, seed=1)
    write_tiny_model(o.scratch / "other", layers=1, seed=2)
    shutil.copytree(o.scratch / "target", o.scratch / "self")  # the target drafts for itself, so everything is accepted
    write_traffic(o.scratch / "log.jsonl", 40)
    (o.scratch / "salt").write_text(f"{7:064d}\n")
    (o.scratch / "salt").chmod(0o600)
    (o.scratch / "chat.json").write_text(json.dumps([{"role": "user", "content": "red green"}]))
    (o.scratch / "schema.json").write_text(
        json.dumps(
            {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["a"],
                "additionalProperties": False,
            }
        )
    )


def observe_data(o):
    salt = ("--salt", "salt")
    o.run_json(
        "data-ingest", "data", "ingest", "log.jsonl", "--target", "target", "--holdout", 0.5, *salt, "--out", "data"
    )
    o.keep_tree("data", "data")
    o.run(
        "data-ingest-text",
        "data",
        "ingest",
        "log.jsonl",
        "--target",
        "target",
        "--holdout-count",
        4,
        "--max-length",
        20,
        "--near-duplicates",
        0.8,
        "--domain",
        "words",
        *salt,
        "--out",
        "data-short",
    )
    o.keep_tree("data-short", "data-short")
    for format in sorted(p.name for p in (SOURCE / "tests/data/fixtures").iterdir() if p.is_dir()):
        shutil.copytree(SOURCE / "tests/data/fixtures" / format, o.scratch / "logs" / format)
        o.run_json(
            f"data-format-{format}",
            "data",
            "ingest",
            f"logs/{format}",
            "--records",
            *salt,
            "--out",
            f"records/{format}",
            "-q",
        )
        o.keep_tree(f"data-records/{format}", f"records/{format}")
    personal = [
        {
            "id": "p1",
            "user": "team-a",
            "messages": [
                {"role": "user", "content": "write to jane.doe@example.com or +49 30 1234567"},
                {"role": "assistant", "content": "key sk-proj-Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0 and 10.1.2.3"},
            ],
        },
        {
            "id": "p2",
            "user": "team-b",
            "domain": "code",
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        },
        {"id": "p3", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        {
            "id": "p4",
            "opt_out": True,
            "messages": [{"role": "user", "content": "z"}, {"role": "assistant", "content": "z"}],
        },
        {"odd": 1},
    ]
    (o.scratch / "personal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in personal) + "{broken\n\n[1]\n")
    o.run_json(
        "data-personal",
        "data",
        "ingest",
        "personal.jsonl",
        "--target",
        "target",
        "--holdout",
        0.5,
        *salt,
        "--out",
        "data-personal",
    )
    o.keep_tree("data-personal", "data-personal")
    rng = random.Random(5)
    (o.scratch / "many.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "id": f"m{i}",
                    "user": f"team-{i % 3}",
                    "conversation_id": f"c{i // 2}",
                    "messages": [
                        {
                            "role": "user",
                            "content": rng.choice(["paint it red", "count to ten", "sort the list"]) + f" {i // 4}",
                        },
                        {"role": "assistant", "content": "yes " * (i % 5 + 6) + str(i // 3)},
                    ],
                }
            )
            + "\n"
            for i in range(60)
        )
    )
    o.run_json(
        "data-selection",
        "data",
        "ingest",
        "many.jsonl",
        "--target",
        "target",
        "--domain-clusters",
        2,
        "--mix",
        "cluster-1=0.5,cluster-2=0.5",
        "--tenant-cap",
        8,
        "--near-duplicates",
        0.9,
        "--order",
        "shuffle",
        "--seed",
        4,
        "--skip",
        2,
        "--limit",
        50,
        "--holdout-count",
        3,
        *salt,
        "--out",
        "data-selection",
        "-q",
    )
    o.keep_tree("data-selection", "data-selection")
    (o.scratch / "rules").write_text("fruit: apple|pear\nred in prompt: red\n")
    o.run_json(
        "data-stdin",
        "data",
        "ingest",
        "-",
        "--format",
        "plain",
        "--separator",
        "\n\n",
        "--target",
        "target",
        "--domain-rules",
        "rules",
        "--holdout-rule",
        "first",
        "--holdout-count",
        1,
        *salt,
        "--out",
        "data-plain",
        stdin=b"an apple a day\n\nred is a colour\n\nand nothing else\n",
    )
    for folder in ("data", "data-personal", "data-plain"):
        o.run_json(f"data-stats-{folder}-json", "data", "stats", folder)
        o.run(f"data-stats-{folder}", "data", "stats", folder)
        o.run_json(f"data-audit-{folder}-json", "data", "audit", folder, "--target", "target")
        o.run(f"data-audit-{folder}", "data", "audit", folder)
    shutil.copytree(o.scratch / "data", o.scratch / "data-damaged")
    with (o.scratch / "data-damaged/train-00000.jsonl").open("a") as file:
        file.write("{}\n")
    for name, arguments in {
        "damaged": ["stats", "data-damaged"],
        "missing": ["stats", "nowhere"],
        "not-ours": ["ingest", "log.jsonl", "--target", "target", "--out", "target"],
        "no-target": ["ingest", "log.jsonl", "--out", "x"],
        "no-source": ["ingest", "absent.jsonl", "--records", "--out", "x"],
    }.items():
        o.run(f"data-error-{name}", "data", *arguments)


def observe_generate(o):
    with_draft = ("generate", "--target", "target", "--draft", "other", "--threads", 1, "--max-tokens", 24)
    plain = ("generate", "--target", "target", "--threads", 1, "--max-tokens", 24)
    o.run("generate-text", *with_draft, "--prompt", "red", "--k", 3, "--temperature", 0)
    for verify in ("token", "block", "target", "coupled"):
        o.run_json(
            f"generate-{verify}", *with_draft, "--prompt", "red green", "--k", 3, "--seed", 5, "--verify", verify
        )
    for verify in ("token", "block"):
        o.run_json(
            f"generate-tree-{verify}",
            *with_draft,
            "--prompt",
            "red green",
            "--tree",
            "2,2,1",
            "--k",
            3,
            "--seed",
            5,
            "--verify",
            verify,
        )
    o.run_json(
        "generate-suffix",
        *plain,
        "--prompt",
        "one two one two one two",
        "--suffix",
        "--k",
        4,
        "--seed",
        2,
        "--ignore-eos",
    )
    o.run_json(
        "generate-options",
        *with_draft,
        "--messages",
        "chat.json",
        "--k",
        2,
        "--seed",
        3,
        "--temperature",
        0.8,
        "--top-k",
        50,
        "--top-p",
        0.9,
        "--min-p",
        0.01,
        "--presence-penalty",
        0.5,
        "--frequency-penalty",
        0.25,
        "--repetition-penalty",
        1.2,
        "--logit-bias",
        "101=5",
        "--bad-word",
        "e",
        "--ignore-eos",
    )
    o.run_json(
        "generate-schema", *with_draft, "--prompt", "", "--k", 2, "--temperature", 0, "--json-schema", "schema.json"
    )
    o.run(
        "generate-regex",
        *with_draft,
        "--prompt",
        "Shall I? ",
        "--k",
        2,
        "--seed",
        1,
        "--regex",
        "(yes|no), because [a-z ]{1,9}\\.",
    )
    for dtype in ("bf16", "int8"):
        o.run_json(f"generate-{dtype}", *with_draft, "--prompt", "red green", "--k", 3, "--seed", 5, "--dtype", dtype)
    o.run_json(
        "generate-reference-kernels",
        *with_draft,
        "--prompt",
        "red green",
        "--k",
        3,
        "--seed",
        5,
        env={"SPECDEC_KERNELS": "ref"},
    )
    (o.scratch / "settings.toml").write_text('threads = 1\n[generate]\nmax-tokens = 4\nseed = 9\nk = "2"\n')
    o.run_json(
        "generate-settings",
        "--config",
        "settings.toml",
        "--log-format",
        "json",
        "-v",
        "generate",
        "--target",
        "target",
        "--draft",
        "other",
        "--prompt",
        "red",
        env={"SPECDEC_GENERATE_SEED": "5"},
    )
    for name, arguments in {
        "no-model": ["--target", "nowhere", "--prompt", "x"],
        "no-draft": ["--target", "target", "--prompt", "x", "--k", "2"],
        "both": ["--target", "target", "--prompt", "x", "--messages", "chat.json"],
    }.items():
        o.run(f"generate-error-{name}", "generate", *arguments)


def observe_distill(o):
    run = (
        "distill",
        "--target",
        "target",
        "--data",
        "data",
        "--out",
        "run",
        "--draft",
        "prune:1",
        "--lr",
        0.01,
        "--batch-tokens",
        128,
        "--evaluate-every",
        10,
        "--evaluate-rows",
        16,
        "--checkpoint-every",
        10,
        "--max-steps",
        20,
        "--threads",
        1,
        "--seed",
        1,
        "-q",
    )
    o.run_json("distill", *run)
    o.keep_tree("distill-run", "run", omit=[r"tfevents"])  # the events hold times beside the figures of metrics.jsonl
    o.run_json("distill-again", *run, "--resume")
    short = (
        "distill",
        "--target",
        "target",
        "--data",
        "data",
        "--max-steps",
        4,
        "--batch-tokens",
        128,
        "--lr",
        0.01,
        "--evaluate-every",
        2,
        "--evaluate-rows",
        8,
        "--threads",
        1,
        "-q",
    )
    o.run_json(
        "distill-model",
        *short,
        "--draft",
        "model:other",
        "--loss",
        "0.1*ce+0.9*tv",
        "--temperature",
        0.8,
        "--out",
        "run-model",
    )
    o.run_json(
        "distill-config",
        *short,
        "--draft",
        "config:other/config.json",
        "--draft-vocab",
        100,
        "--loss",
        "kl",
        "--accumulate",
        2,
        "--weight-decay",
        0.1,
        "--out",
        "run-config",
    )
    for folder in ("run-model", "run-config"):
        o.keep_tree(
            f"distill-{folder}", folder, omit=[r"tfevents", r"report\.", r"\.lock", r"specdec\.json", r"state\.json"]
        )
    o.run("distill-error-other-options", *run, "--resume", "--loss", "kl")
    o.run("distill-error-taken", *run)


def observe_validate(o):
    sure = ("--target", "target", "--data", "data", "--threads", 1, "--contexts", "data", "-q")
    # The draft fails by its acceptance, whatever the speed turns out to be, so the verdict does not depend on the
    # machine.
    o.run_json(
        "validate-all",
        "validate",
        *sure,
        "--draft",
        "other",
        "--out",
        "gate-all",
        "--k",
        2,
        "--floor",
        0.95,
        "--max-k",
        2,
        "--speed-prompts",
        4,
        "--speed-tokens",
        8,
        "--rollout-tokens",
        16,
        "--rollout-requests",
        8,
    )
    o.keep_tree("validate-all-out", "gate-all", omit=[r"report\.(html|md)", r"junit"])
    o.keep(
        "validate-all-out/report.junit.names",
        "\n".join(
            re.findall(
                r'(?:testsuite|testcase|testsuites) [^>]*?name="[^"]*"',
                (o.scratch / "gate-all/report.junit.xml").read_text(),
            )
        )
        + "\n",
    )
    o.keep(
        "validate-all-out/report.md.words",
        re.sub(
            r"[0-9]+(\.[0-9]+)?",
            "<n>",
            (o.scratch / "gate-all/report.md").read_text().split("<details><summary>Speed")[0].split("| Speed-up")[0],
        ),
    )
    o.run_json(
        "validate-self",
        "validate",
        *sure,
        "--draft",
        "self",
        "--out",
        "gate",
        "--k",
        3,
        "--parts",
        "acceptance,rollout",
        "--rollout-tokens",
        16,
    )
    o.keep_tree("validate-self-out", "gate")
    o.run_json(
        "validate-baseline",
        "validate",
        *sure,
        "--draft",
        "run/draft",
        "--out",
        "gate-baseline",
        "--parts",
        "acceptance,rollout",
        "--baseline",
        "gate/report.json",
        "--min-gain",
        0.9,
        "--rollout-tokens",
        8,
        "--verify",
        "block",
    )
    o.keep_tree("validate-baseline-out", "gate-baseline")
    o.run_json(
        "validate-against",
        "validate",
        *sure,
        "--draft",
        "run/draft",
        "--out",
        "gate-against",
        "--parts",
        "acceptance,rollout",
        "--against",
        "other",
        "--segments-floor",
        0.5,
        "--rollout-tokens",
        8,
        "--predict",
        "c=0.05,v=1.1,batch=8",
        "--temperature",
        0.7,
        "--top-k",
        20,
        "--max-requests",
        12,
        "--k",
        2,
    )
    o.keep_tree("validate-against-out", "gate-against")
    o.run_json(
        "validate-lossless",
        "validate",
        *sure,
        "--draft",
        "self",
        "--out",
        "gate-lossless",
        "--parts",
        "lossless,acceptance",
        "--k",
        2,
        "--rollout-tokens",
        8,
        "--goal",
        0.9,
        "--temperature",
        0.5,
    )
    o.run(
        "validate-text",
        "validate",
        *sure,
        "--draft",
        "other",
        "--out",
        "gate-other",
        "--parts",
        "acceptance",
        "--no-early-stop",
    )
    o.run("validate-error-floor", "validate", *sure, "--draft", "other", "--out", "x", "--floor", 0.1)
    o.run_json(
        "bench",
        "bench",
        "--target",
        "target",
        "--draft",
        "other",
        "--data",
        "data",
        "--out",
        "bench",
        "--ks",
        "2",
        "--batches",
        "1,2",
        "--prompts",
        2,
        "--tokens",
        8,
        "--threads",
        1,
        "-q",
    )


FIXED_TIME = {"started": "2026-01-02T03:04:05Z", "seconds": 12.5}


def with_speed(report):
    """Makes a report with the acceptance that was measured here and a made-up speed, so that the verdict is always
    pass."""
    report = dict(report, verdict="pass", reason="speed-up at batch 1 1.500 [1.400, 1.600]", **FIXED_TIME)
    report["speed"] = {
        "draft_cost": 0.1,
        "verify_cost": {"1": 1.1},
        "verify_cost_table": {"1": {"5": 1.1}},
        "measured": {"speedup": 1.5, "ci": [1.4, 1.6], "prompts": 8, "k": 3},
        "predicted": 1.5,
        "table": [],
        "schedule": [[1, 4, 3]],
        "schedule_figures": [{"basis": "measured", "validated": True, "k": 3, "speedup": 1.5, "ci": [1.4, 1.6]}],
    }
    report["lossless"] = {
        "greedy_prompts": 8,
        "greedy_identical": 8,
        "near_ties": 0,
        "differences": 0,
        "sampled_p_value": 0.5,
    }
    return report


def observe_package(o):
    # The reports have fixed times, so that the digests of what is made from them are the same in every run.
    read = lambda gate: json.loads((o.scratch / gate / "report.json").read_text())
    for name, report in {
        "passed": with_speed(read("gate")),
        "failed": dict(read("gate-other"), **FIXED_TIME),
        "against": dict(read("gate-against"), **FIXED_TIME),
    }.items():
        (o.scratch / f"{name}.json").write_text(json.dumps(report))

    # The distilled draft gets fixed times in the record of its training.
    shutil.copytree(o.scratch / "run/draft", o.scratch / "bound")
    made = json.loads((o.scratch / "bound/specdec.json").read_text())
    made["training"].update(FIXED_TIME)
    made["training"]["training"].update(seconds=10.5, tokens_per_second=1000.5)
    (o.scratch / "bound/specdec.json").write_text(json.dumps(made))

    def package(name, *arguments):
        next_second()
        learn = lambda out: o.normaliser.learn_digest(
            json.loads(out)["digest"], f"package-{name}"
        )  # the manifest says when it was made
        return o.run_json(
            f"package-{name}", "package", "--target", "target", "--store", "store", *arguments, learn=learn
        )["digest"]

    first = package("first", "--draft", "self", "--report", "passed.json", "--channel", "production", "--name", "tiny")
    third = package(
        "third",
        "--draft",
        "bound",
        "--report",
        "against.json",
        "--allow-failed",
        "--reference-target",
        "--engines",
        "specdec",
    )  # launch files of other engines would name the folder of the target
    second = package(
        "second",
        "--draft",
        "other",
        "--report",
        "failed.json",
        "--allow-failed",
        "--channel",
        "production",
        "--visibility",
        "public",
    )
    o.run(
        "package-error-failed",
        "package",
        "--target",
        "target",
        "--draft",
        "other",
        "--report",
        "gate-other/report.json",
        "--store",
        "store",
    )
    o.run(
        "package-error-other-pair",
        "package",
        "--target",
        "target",
        "--draft",
        "self",
        "--report",
        "gate-other/report.json",
        "--store",
        "store",
    )
    for name, digest in (("first", first), ("second", second), ("third", third)):
        o.keep_tree(f"package-files/{name}", f"store/packages/sha256-{digest}")
    o.run_json("package-verify-json", "package", "verify", "store:production")
    o.run("package-verify", "package", "verify", f"store:sha256-{first[:12]}")
    for name, digest in (("first", first), ("second", second)):
        o.run_json(f"package-lint-{name}-json", "package", "lint", f"store/packages/sha256-{digest}")
        o.run(f"package-lint-{name}", "package", "lint", f"store/packages/sha256-{digest}")
    o.run("package-lint-sarif", "package", "lint", "--target", "target", "--draft", "other", "--format", "sarif")
    o.run_json("package-list-json", "package", "list", "--store", "store")
    o.run("package-list", "package", "list", "--store", "store")
    next_second()
    o.run_json(
        "package-promote",
        "package",
        "promote",
        f"sha256-{second[:12]}",
        "--store",
        "store",
        "--channel",
        "canary",
        "--why",
        "try it",
    )
    o.run_json("package-rollback", "package", "rollback", "--store", "store", "--channel", "production")
    o.run("package-rollback-again", "package", "rollback", "--store", "store", "--channel", "production")
    o.run_json("package-pin", "package", "pin", third, "--store", "store", "--why", "audit")
    o.run_json("package-gc-dry", "package", "gc", "--store", "store", "--keep", 1, "--dry-run")
    o.run("package-gc", "package", "gc", "--store", "store", "--keep", 1)
    o.run_json("package-unpin", "package", "unpin", third, "--store", "store")
    o.run_json("package-push", "package", "push", "store:production", "--store", "mirror", "--channel", "production")
    o.run_json("package-gc-last", "package", "gc", "--store", "store", "--keep", 1)
    o.run_json("package-quantise", "package", "quantise", "--draft", "other", "--format", "int8", "--out", "other-int8")
    o.keep_tree("package-int8", "other-int8")
    for folder in ("store", "mirror"):
        o.keep_tree(f"package-{folder}-refs", f"{folder}/refs")
    keys = SOURCE / "tests/base/minisign"
    shutil.copy(keys / "plain.key", o.scratch / "plain.key")
    shutil.copy(keys / "plain.pub", o.scratch / "plain.pub")
    (o.scratch / "plain.key").chmod(0o600)
    shutil.copytree(o.scratch / "mirror", o.scratch / "damaged")
    o.run_json("package-sign", "package", "sign", "mirror:production", "--key", "plain.key")
    o.run_json("package-verify-signed", "package", "verify", "mirror:production", "--public-key", "plain.pub")
    shutil.copy(keys / "plain.pub", o.scratch / "mirror/trusted.pub")
    o.run("package-error-unsigned-channel", "package", "verify", "mirror:production")
    o.run_json(
        "package-promote-signed",
        "package",
        "promote",
        f"sha256-{first[:12]}",
        "--store",
        "mirror",
        "--channel",
        "production",
        "--key",
        "plain.key",
    )
    o.run("package-verify-trusted", "package", "verify", "mirror:production")
    o.keep(
        "package-signed-channel",
        re.sub(
            r"(?m)^(?=R[A-Za-z0-9+/=]{90})\S+$|^[A-Za-z0-9+/]{86}==$|^trusted comment: .*$",
            "<signature>",
            (o.scratch / "mirror/refs/production").read_text(),
        ),
    )
    with next((o.scratch / "damaged/packages").glob("*/draft/config.json")).open("a") as file:
        file.write(" ")
    o.run("package-error-damaged", "package", "verify", "damaged:production")
    o.run("package-error-no-channel", "package", "verify", "store:nightly")
    o.package = {"first": first, "second": second}


class Server:
    """Runs specdec serve on a free port."""

    def __init__(self, o, name, *arguments):
        self.o, self.name = o, name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        o.normaliser.learn(f":{self.port}", ":<port>")
        o.normaliser.learn(f"--port {self.port}", "--port <port>")
        self.log = o.scratch / f"{name}.log"
        self.arguments = ["serve", *map(str, arguments), "--port", str(self.port), "--threads", "1"]
        self.process = subprocess.Popen(
            [str(o.program), *self.arguments],
            cwd=o.scratch,
            env=o.environment,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("w"),
        )
        deadline = time.monotonic() + 300
        while "listening on" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("serve does not start: " + self.log.read_text())
            time.sleep(0.05)

    def wait_until_idle(self, headers):
        """Waits until no request is running, because a reply is sent before the engine has counted its last step."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            connection.request("GET", "/metrics", headers=headers or {})
            page = connection.getresponse().read().decode()
            connection.close()
            if "\nspecdec:num_requests_running 0\n" in page:
                return
            time.sleep(0.02)

    def ask(self, name, method, path, body=None, headers=None):
        if path == "/metrics":
            self.wait_until_idle(headers)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(
            method, path, data, {**({"Content-Type": "application/json"} if data else {}), **(headers or {})}
        )
        reply = connection.getresponse()
        text = reply.read().decode(errors="replace")
        connection.close()
        self.keep_reply(name, method, path, data, reply, text)
        return text

    def keep_reply(self, name, method, path, data, reply, text):
        o, file = self.o, f"http-{name}"
        if path == "/metrics":
            text = metrics_that_count(text)
        if (reply.getheader("Content-Type") or "").startswith("text/event-stream"):
            text = joined_stream(text, o.normaliser, file)
        heads = "".join(
            f"{k.lower()}: {v}\n" for k, v in sorted(reply.getheaders()) if k.lower() not in ("date", "content-length")
        )  # lengths depend on ids and times
        o.keep(
            file,
            f"{method} {path}\n{(data or b'').decode(errors='replace')[:2000]}\n{reply.status}\n{heads}\n"
            + o.normaliser.any(file, text),
        )

    def unix(self, name, method, path, body=None):
        self.wait_until_idle({})

        class Unix(http.client.HTTPConnection):
            def connect(inner):
                inner.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                inner.sock.connect(str(self.o.scratch / "admin.sock"))

        connection = Unix("admin", timeout=300)
        data = json.dumps(body).encode() if body else None
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        reply = connection.getresponse()
        self.keep_reply(name, method, path, data, reply, reply.read().decode())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self.o.keep(
            f"{self.name}.txt", f"$ specdec {' '.join(self.arguments)}\nexit {code}\n--- stderr\n{self.log.read_text()}"
        )


def joined_stream(text, normaliser, file):
    """Returns the events of a stream in a fixed form. How many tokens one event holds depends on the pace of the
    connection, so the texts are joined and everything else is kept once. The events of several choices have no fixed
    order."""
    texts, kinds, several = {}, [], '"index":1' in text
    for event in text.split("\n\n"):
        if not event.startswith("data: {"):
            kinds.append(event)
            continue
        chunk = json.loads(event[6:])
        for choice in chunk.get("choices", []):
            part, key = choice.get("delta", choice), "content" if "delta" in choice else "text"
            if isinstance(part.get(key), str):
                texts[choice["index"]] = texts.get(choice["index"], "") + part.pop(key)
        kinds.append(normaliser.any(file, json.dumps(chunk)))
    kinds = list(dict.fromkeys(kinds))
    return "".join(sorted(kinds) if several else kinds) + "".join(
        f"text of choice {i}: {texts[i]!r}\n" for i in sorted(texts)
    )


# Metrics whose value is a time or a speed, and the number of connections, because the previous connection may or may
# not be closed yet. Only their names and labels are kept. The numbers of observed durations are kept.
VARYING = re.compile(r"_seconds(_total|_sum|_bucket)?$|_tokens_per_second$|^specdec:connections$")


def metrics_that_count(page):
    """Returns the families in their order and the samples of each sorted: samples come from a hash table, and their
    order means nothing."""
    lines, family = [], 0
    for line in page.splitlines():
        match = None if line.startswith("#") else re.match(r"(\S+?)(\{.*\})? (\S+)$", line)
        if match and (
            VARYING.search(match[1]) or 'route="/metrics"' in line
        ):  # depends on how often the page was asked for until the server was idle
            line = f"{match[1]}{match[2] or ''} <varies>"
        if line.startswith("#"):
            family += 1
        lines.append((family, line))
    return "".join(line + "\n" for _, line in sorted(lines))


def observe_serve(o):
    server = Server(
        o,
        "serve-package",
        "store:production",
        "--k",
        3,
        "--record",
        "recorded",
        "--record-rejects",
        1,
        "--acceptance-log",
        "acceptance.jsonl",
        "--admin-socket",
        "admin.sock",
        "--served-model-name",
        "tiny",
    )
    chat, text = "/v1/chat/completions", "/v1/completions"
    message = [{"role": "user", "content": "red green"}]
    for path in (
        "/v1/models",
        "/v1/models/tiny",
        "/v1/models/none",
        "/health",
        "/ready",
        "/gate",
        "/gate?floor=2",
        "/nowhere",
    ):
        server.ask("get" + re.sub(r"[/?=]", "-", path), "GET", path)
    server.ask("dashboard", "GET", "/dashboard")
    requests = {
        "greedy": (text, {"prompt": "red", "temperature": 0, "max_tokens": 24}),
        "seeded": (
            text,
            {
                "prompt": "red",
                "seed": 7,
                "max_tokens": 24,
                "temperature": 0.9,
                "top_p": 0.95,
                "top_k": 40,
                "min_p": 0.001,
                "ignore_eos": True,
            },
        ),
        "plain": (text, {"prompt": "red", "seed": 7, "max_tokens": 24, "speculative": False, "ignore_eos": True}),
        "eos": (text, {"prompt": "red", "seed": 1, "max_tokens": 200}),
        "n-prompts": (text, {"prompt": ["one", "two"], "n": 2, "seed": 3, "max_tokens": 8}),
        "token-ids": (
            text,
            {
                "prompt": [256, 65, 66],
                "seed": 3,
                "max_tokens": 8,
                "return_token_ids": True,
                "echo": True,
                "logprobs": 2,
            },
        ),
        "score": (text, {"prompt": "red", "echo": True, "logprobs": 1, "max_tokens": 0}),
        "stop": (text, {"prompt": "red", "seed": 7, "max_tokens": 64, "stop": ['"', "e", "A"], "ignore_eos": True}),
        "penalties": (
            text,
            {
                "prompt": "red",
                "seed": 4,
                "max_tokens": 24,
                "presence_penalty": 0.5,
                "frequency_penalty": 0.5,
                "repetition_penalty": 1.2,
                "logit_bias": {"101": 4, "65": -100},
                "bad_words": ["B"],
            },
        ),
        "ends": (
            text,
            {
                "prompt": "red",
                "seed": 4,
                "max_tokens": 24,
                "min_tokens": 6,
                "stop_token_ids": [101, 110],
                "stop": ["a"],
                "include_stop_str_in_output": True,
                "allowed_token_ids": list(range(97, 123)),
                "truncate_prompt_tokens": 3,
                "return_token_ids": True,
            },
        ),
        "tokenize": ("/tokenize", {"prompt": "red", "return_token_strs": True}),
        "tokenize-chat": ("/tokenize", {"messages": message}),
        "detokenize": ("/detokenize", {"tokens": [82, 101, 100]}),
        "metrics": (
            text,
            {
                "prompt": "red",
                "seed": 4,
                "max_tokens": 24,
                "include_metrics": True,
                "metadata": {"domain": "colours", "conversation_id": "c-1"},
            },
        ),
        "chat": (chat, {"messages": message, "seed": 5, "max_tokens": 24, "logprobs": True, "top_logprobs": 2}),
        "chat-n": (chat, {"messages": message, "seed": 5, "max_tokens": 8, "n": 2}),
        "chat-schema": (
            chat,
            {
                "messages": message,
                "temperature": 0,
                "max_tokens": 40,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": json.loads((o.scratch / "schema.json").read_text())},
                },
            },
        ),
        "regex": (text, {"prompt": "red", "seed": 1, "max_tokens": 20, "guided_regex": "(yes|no), [a-z]{3}"}),
        "choice": (text, {"prompt": "red", "seed": 1, "max_tokens": 20, "guided_choice": ["left", "right"]}),
        "stream": (
            text,
            {"prompt": "red", "seed": 7, "max_tokens": 24, "stream": True, "stream_options": {"include_usage": True}},
        ),
        "stream-chat": (chat, {"messages": message, "seed": 5, "max_tokens": 24, "stream": True, "n": 2}),
    }
    for name, (path, body) in requests.items():
        server.ask(name, "POST", path, {"model": "tiny", **body})
    bad = {
        "no-json": b"{",
        "no-prompt": {},
        "wrong-type": {"prompt": 5},
        "unknown-model": {"model": "gpt", "prompt": "x"},
        "temperature": {"prompt": "x", "temperature": 3},
        "n": {"prompt": "x", "n": 99},
        "too-long": {"prompt": "x" * 400},
        "bad-regex": {"prompt": "x", "guided_regex": "("},
        "token": {"prompt": [VOCAB + 5]},
        "no-token": {"prompt": "x", "guided_choice": ["e"], "bad_words": ["e"]},
        "logprobs": {"prompt": "x", "logprobs": 21},
        "two-grammars": {"prompt": "x", "guided_regex": "a", "guided_choice": ["b"]},
        "top-p": {"prompt": "x", "top_p": 0},
        "stop": {"prompt": "x", "stop": [""] * 17},
        "not-offered": {"prompt": "x", "use_beam_search": True},
        "min-tokens": {"prompt": "x", "min_tokens": 17},
    }
    for name, body in bad.items():
        server.ask(f"bad-{name}", "POST", text, body)
    server.ask("bad-chat", "POST", chat, {"messages": [{"role": "wizard", "content": "x"}]})
    server.ask("bad-method", "PUT", text, {})
    server.ask("bad-host", "GET", "/v1/models", headers={"Host": "elsewhere.example"})
    o.page = server.ask("metrics-page", "GET", "/metrics")
    server.unix("admin-none", "GET", "/admin/draft")
    server.unix("admin-drop-nothing", "POST", "/admin/draft", {"action": "drop"})
    server.unix("admin-refused", "POST", "/admin/draft", {"action": "load", "draft": "nowhere"})
    server.unix("admin-load", "POST", "/admin/draft", {"action": "load", "draft": str(o.scratch / "other"), "score": 1})
    server.ask("greedy-scored", "POST", text, {"prompt": "red", "temperature": 0, "max_tokens": 24})
    server.unix("admin-canary", "GET", "/admin/draft")
    server.unix("admin-promote", "POST", "/admin/draft", {"action": "promote"})
    server.ask("greedy-promoted", "POST", text, {"prompt": "red", "temperature": 0, "max_tokens": 24})
    server.ask("metrics-after", "GET", "/metrics")
    o.run_json(
        "data-regenerate",
        "data",
        "regenerate",
        "data",
        "--target",
        f"http://127.0.0.1:{server.port}/v1",
        "--target-files",
        "target",
        "--out",
        "data-own",
        "--concurrency",
        1,
        "--max-tokens",
        8,
        "--seed",
        3,
        "-q",
    )
    o.keep_tree("data-own", "data-own")
    server.stop()
    o.keep_tree("serve-recorded", "recorded", omit=[r"\.lock"])
    o.keep("serve-acceptance.jsonl", (o.scratch / "acceptance.jsonl").read_text())
    (o.scratch / "keys").write_text("secret-key-1 team-a\n")
    (o.scratch / "keys").chmod(0o600)
    server = Server(
        o,
        "serve-block-tree",
        "--target",
        "target",
        "--draft",
        "other",
        "--tree",
        "2,1",
        "--verify",
        "block",
        "--k",
        2,
        "--api-key-file",
        "keys",
        "--max-batch",
        2,
    )
    server.ask("key-none", "GET", "/v1/models")
    server.ask("key-wrong", "GET", "/v1/models", headers={"Authorization": "Bearer x"})
    server.ask("key-right", "GET", "/v1/models", headers={"Authorization": "Bearer secret-key-1"})
    server.ask(
        "tree-greedy",
        "POST",
        text,
        {"prompt": "red green", "temperature": 0, "max_tokens": 24},
        {"Authorization": "Bearer secret-key-1"},
    )
    server.ask("tree-metrics", "GET", "/metrics", headers={"Authorization": "Bearer secret-key-1"})
    server.stop()
    o.run("serve-error-port", "serve", "--target", "target", "--port", "99999")
    o.run("serve-error-host", "serve", "--target", "target", "--host", "0.0.0.0")
    o.run("serve-error-package", "serve", "store:nothing")


def write_records(file, o, count, loss, seed, draft, target, domain=""):
    """Appends acceptance records of a time long ago. Every position accepts 1 - `loss` on average."""
    rng = random.Random(seed)
    with file.open("a") as out:
        for i in range(count):
            steps = 40
            rates = [max(0.0, min(1.0, 1 - loss + rng.gauss(0, 0.01))) for _ in range(3)]
            reached, accepted, overlap = [], [], []
            here = steps
            for rate in rates:
                reached.append(here)
                here = round(here * rate)
                accepted.append(here)
                overlap.append(round(reached[-1] * rate * 1000))
            row = {
                "schema": "specdec.acceptance/1",
                "t": 1750000000 + 60 * i,
                "s": domain,
                "T": 1.0,
                "q": draft,
                "p": target,
                "n0": 0,
                "D": 3 * steps,
                "e": sum(accepted) + steps,
                "r": reached,
                "a": accepted,
                "o": overlap,
            }
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


@contextlib.contextmanager
def pages(o):
    """Runs a web server that serves the files of the scratch folder as /metrics pages."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            file = o.scratch / self.path.strip("/")
            self.send_response(200 if file.is_file() else 404)
            self.end_headers()
            self.wfile.write(file.read_bytes() if file.is_file() else b"")

        def do_POST(self):
            o.posted.append(f"POST {self.path}\n" + self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    o.posted = []
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    o.normaliser.learn(f":{web.server_port}", ":<port>")
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()


def counters(steps, reached, accepted, overlap):
    page = (
        f"specdec:spec_decode_num_drafts_total {steps}\nspecdec:spec_decode_num_draft_tokens_total {3 * steps}\n"
        f"specdec:spec_decode_num_accepted_tokens_total {sum(accepted)}\n"
    )
    for i in range(3):
        page += f'specdec:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {accepted[i]}\n'
        page += f'specdec:spec_decode_num_reached_tokens_per_pos_total{{position="{i}"}} {reached[i]}\n'
        page += f'specdec:spec_decode_overlap_sum_per_pos_total{{position="{i}"}} {overlap[i]}\n'
    return page


def keep_monitor(o, name, state, *more):
    o.run_json(f"monitor-{name}-status-json", "monitor", "status", "--state", state)
    o.run(f"monitor-{name}-status", "monitor", "status", "--state", state)
    o.run_json(f"monitor-{name}-report-json", "monitor", "report", "--state", state)
    o.run(f"monitor-{name}-report", "monitor", "report", "--state", state)
    o.keep_database(f"monitor-{name}.sql", state)


def observe_monitor(o):
    fingerprint = lambda result, model: result["inputs"][model]["fingerprint"]["id"][:12]
    report = json.loads((o.scratch / "gate/report.json").read_text())
    draft, target = fingerprint(report, "draft"), fingerprint(report, "target")
    # The sources are what serve recorded and the page that it served.
    package = f"store/packages/sha256-{o.package['first']}"
    o.run_json(
        "monitor-served",
        "monitor",
        "check",
        "--package",
        package,
        "--source",
        "recorded/acceptance",
        "--target",
        "target",
        "--state",
        "served.db",
    )
    o.run(
        "monitor-served-text",
        "monitor",
        "check",
        "--package",
        package,
        "--source",
        "recorded/acceptance",
        "--state",
        "served.db",
    )
    keep_monitor(o, "served", "served.db")
    with pages(o) as url:
        (o.scratch / "page").write_text(o.page)
        o.run_json(
            "monitor-page", "monitor", "check", "--package", package, "--source", f"{url}/page", "--state", "page.db"
        )
        sums = [0] * 10
        rng = random.Random(3)
        for look in range(14):
            loss = 0 if look < 12 else 0.5
            step = [400 + rng.randrange(20)]
            for _ in range(3):
                step.append(int(step[-1] * (1 - loss)))
            sums = [
                sums[0] + step[0],
                *[s + a for s, a in zip(sums[1:4], step[:3])],
                *[s + a for s, a in zip(sums[4:7], step[1:4])],
                *[s + a for s, a in zip(sums[7:10], step[1:4])],
            ]
            (o.scratch / "counters").write_text(counters(sums[0], sums[1:4], sums[4:7], sums[7:10]))
            o.run_json(
                f"monitor-counters-{look:02}",
                "monitor",
                "check",
                "--package",
                package,
                "--source",
                f"{url}/counters",
                "--state",
                "counters.db",
            )
        keep_monitor(o, "counters", "counters.db")
        o.run(
            "monitor-error-page",
            "monitor",
            "check",
            "--package",
            package,
            "--source",
            f"{url}/absent",
            "--state",
            "absent.db",
        )
        for engine in ("vllm", "sglang", "trtllm", "llamacpp"):
            shutil.copy(SOURCE / f"tests/monitor/fixtures/{engine}.prom", o.scratch / engine)
            o.run_json(
                f"monitor-engine-{engine}",
                "monitor",
                "check",
                "--package",
                package,
                "--source",
                f"{url}/{engine}",
                "--state",
                f"{engine}.db",
            )
    # The records come first from a healthy draft and then from a draft whose acceptance has dropped. The checks show
    # what the monitor does in both cases.
    check = [
        "monitor",
        "check",
        "--package",
        "store:production",
        "--source",
        "records.jsonl",
        "--state",
        "records.db",
        "--requests-per-day",
        1000,
        "--false-alarm-every",
        "30d",
    ]
    write_records(o.scratch / "records.jsonl", o, 120, 0.0, 1, draft, target)
    o.run_json("monitor-healthy", *check, "--prom", "specdec.prom")
    o.keep(
        "monitor-specdec.prom",
        re.sub(
            r"(?m)^(specdec_monitor_last_success_timestamp_seconds) .*",
            r"\1 <now>",
            (o.scratch / "specdec.prom").read_text(),
        ),
    )
    write_records(o.scratch / "records.jsonl", o, 200, 0.3, 2, draft, target, "code")
    (o.scratch / "records.jsonl").open("a").write("not a record\n{}\n")
    acting = [
        "--confirm",
        "alarm",
        "--redistil",
        "echo redistilled",
        "--min-fresh",
        0,
        "--on-drift",
        "echo drifted > drifted.txt",
    ]
    # History and transitions are shown in the order of their seconds, so this waits for the next second.
    next_second()
    with pages(o) as url:
        (o.scratch / "hook").write_text(f"{url}/hook\n")
        (o.scratch / "hook").chmod(0o600)
        o.run_json("monitor-drift", *check, *acting, "--webhook", "@hook", "--alertmanager", url)
        for i, posted in enumerate(o.posted):
            first, body = posted.split("\n", 1)
            o.keep(f"monitor-posted-{i}", first + "\n" + o.normaliser.any("monitor-posted", body))
            with contextlib.suppress(ValueError):
                o.saw(json.loads(body))
    o.run_json(
        "monitor-job",
        "monitor",
        "check",
        "--package",
        "store:production",
        "--source",
        "records.jsonl",
        "--state",
        "job.db",
        "--confirm",
        "alarm",
        "--redistil",
        "true",
        "--job",
        "job.yaml",
        "--job-image",
        "specdec:test",
        "--loop",
        "loop.toml",
        "--min-fresh",
        0,
    )
    o.keep("monitor-job.yaml", (o.scratch / "job.yaml").read_text() if (o.scratch / "job.yaml").exists() else "none\n")
    watch = subprocess.Popen(
        [str(o.program), *map(str, ["monitor", "watch", *check[2:], "--interval", 60])],
        cwd=o.scratch,
        env=o.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    line = watch.stdout.readline()
    watch.send_signal(signal.SIGTERM)
    o.keep("monitor-watch.txt", line + watch.communicate(timeout=60)[0] + f"exit {watch.returncode}\n")
    next_second()
    o.run("monitor-drift-again", *check, *acting)
    next_second()
    o.run("monitor-acknowledge", *check, "--acknowledge", "--fail-on", "warn")
    write_records(o.scratch / "records.jsonl", o, 60, 0.0, 3, draft, target)
    next_second()
    o.run_json("monitor-after", *check)
    next_second()
    o.run_json("monitor-candidate", *check, "--candidate", "store:canary", "--allow-failed")
    keep_monitor(o, "records", "records.db")
    o.run_json(
        "monitor-stale",
        "monitor",
        "check",
        "--package",
        package,
        "--source",
        "records.jsonl",
        "--target",
        "other",
        "--state",
        "stale.db",
    )
    keep_monitor(o, "stale", "stale.db")
    write_records(o.scratch / "long.jsonl", o, 1500, 0.1, 4, draft, target)
    o.run_json(
        "monitor-baseline",
        "monitor",
        "baseline",
        "--package",
        package,
        "--source",
        "long.jsonl",
        "--out",
        "baseline.json",
    )
    o.keep(
        "monitor-baseline.json",
        (o.scratch / "baseline.json").read_text() if (o.scratch / "baseline.json").exists() else "none\n",
    )
    o.run_json(
        "monitor-against-baseline",
        "monitor",
        "check",
        "--package",
        package,
        "--source",
        "long.jsonl",
        "--baseline",
        "baseline.json",
        "--state",
        "baseline.db",
    )
    (o.scratch / "damaged.db").write_text("no database\n")
    o.run("monitor-error-damaged", "monitor", "status", "--state", "damaged.db")
    o.run("monitor-error-package", "monitor", "check", "--package", "store:nothing", "--state", "x.db")


def observe_loop(o):
    folder = o.scratch / "loop"
    folder.mkdir()
    shutil.copy(o.scratch / "log.jsonl", folder / "day-1.jsonl")
    (folder / "LOOP.toml").write_text("""[loop]
target = "../target"
logs = ["*.jsonl"]
work = "work"
store = "store"
channel = "production"
[data]
holdout = 0.5
[distill]
max-steps = 4
batch-tokens = 128
lr = 0.01
evaluate-every = 4
evaluate-rows = 8
threads = 1
[validate]
parts = "acceptance"
contexts = "data"
threads = 1
exit-zero = true
[package]
allow-failed = true
""")
    # The key covers the names of the logs, which are in the scratch folder.
    plan = subprocess.run(
        [str(o.program), "--json", "loop", "run", "loop/LOOP.toml", "--plan"],
        cwd=o.scratch,
        env=o.environment,
        capture_output=True,
        check=True,
    )
    o.normaliser.learn(json.loads(plan.stdout)["key"], "<key>")

    def learn_package(_):
        channel = folder / "store/refs/production"
        if channel.is_file():
            o.normaliser.learn_digest(channel.read_text().split()[0], "package-loop")

    o.run_json(
        "loop-run", "loop", "run", "loop/LOOP.toml", err=False, learn=learn_package
    )  # err=False: the progress has a line for each stage and second
    o.run_json("loop-run-again", "loop", "run", "loop/LOOP.toml")
    o.keep_tree("loop-work", "loop/work", texts=False, binaries=False)
    shutil.move(folder / "work", folder / "work-1")
    o.run_json("loop-plan-json", "loop", "run", "loop/LOOP.toml", "--plan")
    o.run("loop-plan", "loop", "run", "loop/LOOP.toml", "--plan")
    (folder / "wrong.toml").write_text("[loop]\ntarget = '../target'\nlog = []\n")
    o.run("loop-error-key", "loop", "run", "loop/wrong.toml")
    o.run("loop-error-missing", "loop", "run", "loop/absent.toml")


def observe_init(o):
    o.run_json("init", "init", "made", "--target", "target", "--requests-per-day", 500)
    o.keep_tree("init-files", "made")
    o.run("init-again", "init", "made", "--only", "loop,systemd")
    o.run("init-only", "init", "made-2", "--only", "loop", "--channel", "candidate", "--logs", "a b/*.jsonl")
    o.keep_tree("init-files-2", "made-2")
    o.run("init-error", "init", "made", "--only", "lop")


PARTS = [
    observe_help,
    observe_inputs,
    observe_data,
    observe_generate,
    observe_distill,
    observe_validate,
    observe_package,
    observe_serve,
    observe_monitor,
    observe_loop,
    observe_init,
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
        o.saw(json.loads(doctor.stdout))  # its values describe the machine, so only its keys are kept
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
