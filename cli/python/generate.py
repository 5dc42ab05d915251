#!/usr/bin/env python3
"""generate.py RESULTS OUT PROGRAM…: writes the generated half of the Python package to the folder OUT.

RESULTS is docs/results.json, the JSON Schema of what the commands print. PROGRAM… is the command that starts specdec;
it is run with `--json help` to list its commands and flags. The files written are:

  results.py    a dataclass for each object
  commands.py   a typed function for each command that prints an object
  version.py    the version"""

import json
import keyword
import subprocess
import sys
import textwrap
from pathlib import Path

HEAD = '# Written by cli/python/generate.py. Changes belong into the program: its results and its flags.\n"""{}"""\n\n'
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# A dataclass member with one of these names would hide the type of that name from the members after it.
TYPES = ("bool", "dict", "float", "int", "list", "str")
# Flags of the program itself that every function takes. The program's other flags are useless here; --json is always
# given.
COMMON = ("config", "quiet", "verbose", "log_format")


def name_of(word):
    """Returns a JSON key or the name of a flag as a Python name."""
    name = word.lstrip("-").replace("-", "_")
    return name + "_" if keyword.iskeyword(name) or name in TYPES else name


def listed(value):
    return value if isinstance(value, list) else [value]


def literal(values):
    return f"Literal[{', '.join(json.dumps(v) for v in values)}]"


def type_of(schema):
    """Returns the Python type of a JSON Schema."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(type_of(one) for one in schema["anyOf"])
    if "enum" in schema:
        return literal(schema["enum"])
    kinds = []
    for kind in listed(schema.get("type", [])):
        if kind == "array":
            kinds.append(f"list[{type_of(schema['items'])}]")
        elif kind == "object":
            values = schema.get("additionalProperties")
            kinds.append(f"dict[str, {type_of(values) if isinstance(values, dict) else 'Any'}]")
        else:
            kinds.append(SCALARS[kind])
    return " | ".join(kinds) or "Any"


def is_result(schema):
    return "verdict" in schema["properties"] and "schema" in schema["properties"]


def dataclass_of(name, schema):
    lines = ["@dataclass(frozen=True, kw_only=True)", f"class {name}{'(Result)' if is_result(schema) else ''}:"]
    text = textwrap.fill(schema["description"] + '"""', 113, subsequent_indent="    ")
    lines += ['    """' + text, ""]
    for key, value in schema["properties"].items():
        if key == "schema":
            lines.append(f"    SCHEMA: ClassVar[str] = {json.dumps(value['const'])}")
            continue
        kind, python = type_of(value), name_of(key)
        extras = [] if python == key else [f'metadata={{"key": {json.dumps(key)}}}']
        if key not in schema["required"]:
            kind += "" if kind.endswith("None") or kind == "Any" else " | None"
            extras.append("default=None")
        default = f" = field({', '.join(extras)})" if extras else ""
        lines += textwrap.wrap(value.get("description", ""), 114, initial_indent="    # ", subsequent_indent="    # ")
        lines.append(f"    {python}: {kind}{default if default != ' = field(default=None)' else ' = None'}")
    return "\n".join(lines) + "\n"


def results_text(definitions):
    parts = [HEAD.format("What the commands print, as dataclasses.")]
    parts.append("from __future__ import annotations\n\n")
    parts.append("from dataclasses import dataclass, field\nfrom typing import Any, ClassVar, Literal\n\n")
    parts.append("from .decode import Result\n\n")
    parts.append("__all__ = [\n" + "".join(f'    "{name}",\n' for name in sorted(definitions)) + "]\n\n\n")
    return "".join(parts) + "\n\n".join(dataclass_of(name, schema) for name, schema in definitions.items())


class Parameter:
    """An argument of a command as a parameter of its function."""

    def __init__(self, argument):
        longs = [name for name in argument["names"] if name.startswith("--")]
        self.argument, self.flag = argument, (longs or argument["names"])[0]
        self.name = name_of(self.flag)
        self.off = longs[1] if argument["type"] == "flag" and longs[1:] == [f"--no-{self.flag[2:]}"] else ""

    def scalar(self):
        a = self.argument
        if a["type"] == "flag":
            return "bool"
        if a["type"] != "text":
            return {"integer": "int", "number": "float"}[a["type"]]
        if a["only_choices"]:
            return literal(a["choices"])
        others = [word for word in a["value"].split("|") if word not in a["choices"]]
        if others == ["N"]:
            return " | ".join(["int"] + ([literal(a["choices"])] if a["choices"] else []))
        return "Text"

    def annotation(self):
        kind = self.scalar()
        if self.argument["list"] or self.argument["repeats"]:
            kind = f"{kind} | Sequence[{kind}]"
        return kind if self.argument["required"] else kind + " | None"

    def text(self):
        is_plain_flag = self.argument["type"] == "flag" and not self.off
        if is_plain_flag:
            return f"{self.name}: bool = False"
        return f"{self.name}: {self.annotation()}" + ("" if self.argument["required"] else " = None")

    def table_text(self):
        a = self.argument
        kind = "positional" if a["positional"] else "flag" if a["type"] == "flag" else "value"
        more = (", is_list=True" if a["list"] else "") + (f", off={json.dumps(self.off)}" if self.off else "")
        return f'            "{self.name}": Flag({json.dumps(self.flag)}, "{kind}"{more}),'


def described(command, parameters):
    """Returns the docstring: the summary and a paragraph for each parameter."""
    texts = [command["summary"].rstrip(".") + ".\n"]
    for p in parameters:
        texts.append(f"{p.name}: {p.argument['help']}")
        if p.argument["default"]:
            texts[-1] += f" (default: {p.argument['default']})"
    lines = [textwrap.fill(text, 116, initial_indent="    ", subsequent_indent="    ") for text in texts]
    lines[0] = '    r"""' + lines[0].strip() + ("\n" if len(lines) > 1 else "")
    return "\n".join([*lines, '    """'])


def parameters_of(command, omitted):
    known = [Parameter(a) for a in command["arguments"] if a["names"][-1] != "--help"]
    return [p for p in known if p.flag not in omitted]


def function_of(command, parameters, results):
    name = name_of(command["command"].replace(" ", "_"))
    first = [p for p in parameters if p.argument["positional"]]
    rest = sorted((p for p in parameters if p not in first), key=lambda p: not p.argument["required"])
    signature = [p.text() for p in first] + ["*"] + [p.text() for p in rest]
    signature += [
        "config: Text | None = None",
        "quiet: bool = False",
        "verbose: bool = False",
        'log_format: Literal["text", "json"] | None = None',
        "timeout: float | None = None",
        "cwd: Text | None = None",
    ]
    lines = [f"def {name}(", *(f"    {text}," for text in signature), f") -> {' | '.join(results)}:"]
    lines += [described(command, first + rest)]
    lines += ["    result = run_command(", f'        COMMANDS["{command["command"]}"],']
    lines += ["        {" + ", ".join(f'"{key}": {key}' for key in COMMON) + "},", "        {"]
    lines += [f'            "{p.name}": {p.name},' for p in first + rest]
    lines += ["        },", "        timeout=timeout,", "        cwd=cwd,", "    )"]
    kinds = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return name, "\n".join([*lines, f"    assert isinstance(result, {kinds})", "    return result"]) + "\n"


RUN = '''def run(command: str, /, *, timeout: float | None = None, cwd: Text | None = None, **given: Value) -> Result:
    """Runs the command with these words, such as "monitor check". The keyword arguments are those of the function of
    the same name, whose type is more exact."""
    if command not in COMMANDS:
        raise UsageError(f"no command {command!r}: expected one of {', '.join(COMMANDS)}", 2)
    common = {key: given.pop(key) for key in list(given) if key in COMMON}
    return run_command(COMMANDS[command], common, given, timeout=timeout, cwd=cwd)
'''


def commands_text(commands, definitions):
    functions, table, names = [], [], ["run"]
    for command in commands:
        printed = {n: s for n, s in definitions.items() if command["command"] in s.get("x-commands", [])}
        if not printed:
            continue
        omitted = {flag for s in printed.values() for flag in s.get("x-without-flags", [])}
        codes = sorted({code for s in printed.values() for code in s.get("x-exit-codes", [])})
        parameters = parameters_of(command, omitted)
        name, text = function_of(command, parameters, list(printed))
        names.append(name)
        functions.append(text)
        row = [f'    "{command["command"]}": Command(', f"        {tuple(command['command'].split())!r},", "        {"]
        row += [p.table_text() for p in parameters]
        row += ["        },", f"        ({', '.join(printed)},),", f"        frozenset({codes!r}),", "    ),"]
        table.append("\n".join(row))
    used = sorted(n for n, s in definitions.items() if s.get("x-commands"))
    head = HEAD.format("A function for each command that prints a result.") + "from __future__ import annotations\n\n"
    head += "from collections.abc import Sequence\nfrom typing import Literal\n\n"
    head += "from .decode import Result\nfrom .errors import UsageError\n"
    head += "from .program import COMMON, Command, Flag, Text, Value, run_command\n"
    head += "from .results import (\n" + "".join(f"    {name},\n" for name in used) + ")\n\n"
    head += "__all__ = [\n" + "".join(f'    "{name}",\n' for name in sorted(names)) + "]\n\n"
    return head + "COMMANDS = {\n" + "\n".join(table) + "\n}\n\n\n" + "\n\n".join([RUN, *functions])


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    results, out, program = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    asked = subprocess.run([*program, "--json", "help"], check=True, capture_output=True, text=True)
    tree = json.loads(asked.stdout)
    definitions = json.loads(results.read_text())["$defs"]
    known = {command["command"] for command in tree["commands"]}
    for name, schema in definitions.items():
        for command in schema.get("x-commands", []):
            if command not in known:
                sys.exit(f"{results}: {name}: there is no command '{command}'")
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.py").write_text(results_text(definitions))
    (out / "commands.py").write_text(commands_text(tree["commands"], definitions))
    version = HEAD.format("The version of the program.") + f'__version__ = "{tree["tool_version"]}"\n'
    (out / "version.py").write_text(version)


main()
