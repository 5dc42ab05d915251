"""Observes help and wrong command lines, and makes the models and logs that the other parts read."""

import json
import re
import shutil
from pathlib import Path

from tiny_model import write_tiny_model, write_traffic

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
    "export",
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
        o.run(f"help-{command.replace(' ', '-')}", f"{command} --help")
    for shell in ("bash", "zsh", "fish"):
        o.run(f"completion-{shell}", f"completion {shell}")
    o.run("demo-traffic", "demo traffic --count 3")
    for name, words in {
        "no-command": "",
        "unknown-command": "distil",
        "unknown-flag": "generate --targte x",
        "missing-flag": "generate",
        "bad-number": "generate --target target --max-tokens many",
        "bad-json-log": "--log-format xml doctor",
    }.items():
        o.run(f"usage-{name}", words)
    (o.scratch / "wrong.toml").write_text("[serve]\nprot = 1\n")
    o.run("usage-config", "--config wrong.toml serve --target target")
    o.run("usage-environment", "monitor status", env={"SPECDEC_MONITOR_STATUS_STATE": "no-such.db"})
    # Keeps the names in the binaries that other programs rely on: schemas, metrics, environment variables.
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
    shutil.copytree(o.scratch / "target", o.scratch / "self")  # the target as its own draft: all tokens are accepted
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
