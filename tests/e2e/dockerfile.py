"""Reads a Dockerfile and its .dockerignore, as far as specdec's own files use their syntax."""

import fnmatch
import json
import re
from pathlib import Path


def instructions(file):
    """Returns the instructions of a Dockerfile as (name, rest), with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", Path(file).read_text(), flags=re.M).replace("\\\n", "")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def stages(file):
    """Returns a list with the instructions of each stage. Its first entry has the instructions before the first
    FROM."""
    parts = [[]]
    for name, rest in instructions(file):
        if name == "FROM":
            parts.append([])
        parts[-1].append((name, rest))
    return parts


def ignored(context, path):
    """Returns whether the .dockerignore of the folder `context` excludes the path from the build."""
    file = Path(context, ".dockerignore")
    lines = file.read_text().split("\n") if file.exists() else []
    patterns = [p for p in lines if p and not p.startswith("#")]
    parents = [path, *(str(p) for p in Path(path).parents)]
    return any(fnmatch.fnmatch(part, p.removeprefix("**/")) for p in patterns for part in parents) or any(
        p.startswith("**/") and fnmatch.fnmatch(Path(path).name, p[3:]) for p in patterns
    )


def command_of(rest):
    """Returns the argument list that a CMD, an ENTRYPOINT, a RUN or the CMD of a HEALTHCHECK starts. A JSON list is
    taken as it is; any other text becomes a shell command."""
    return json.loads(rest) if rest.startswith("[") else ["/bin/sh", "-c", rest]
