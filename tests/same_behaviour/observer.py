"""Runs specdec and stores everything observable of it: output, exit codes, files."""

import contextlib
import hashlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path

from same_behaviour.normaliser import Normaliser

SOURCE = Path(__file__).resolve().parents[2]


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

    def run(self, name, command, stdin=None, err=True, env=None, learn=None):
        """Runs specdec in the scratch folder with the arguments in `command`, split as by a shell. Keeps command, exit
        code, stdout and, unless `err` is false, stderr. Returns stdout. `learn` gets stdout before it is kept, and may
        teach the normaliser digests that depend on a time or on the scratch folder."""
        arguments = shlex.split(command)
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

    def run_json(self, name, command, **options):
        out = self.run(name, f"--json {command}", **options)
        with contextlib.suppress(ValueError):
            result = json.loads(out)
            self.saw(result)
            return result
        return {}

    def saw(self, result):
        """Adds the paths and types of a JSON document to those of the documents with the same schema."""

        def paths(value, path):
            if isinstance(value, dict):
                for key, inner in value.items():
                    # Keys that are data (numbers, names of files, reasons) become "*", because they are not part of the
                    # schema.
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
        """Keeps all files below `folder` with their modes: text files as they are, other files as their digests."""
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
        """Keeps schema and rows of a SQLite database as SQL. A text rule replaces the inodes of the files that were
        read."""
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
