"""Finds the specdec program, calls it, and reads what it prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .decode import Result, decode_result
from .errors import BY_EXIT_CODE, Interrupted, ProgramNotFound, SpecdecError, UnexpectedOutput, UsageError

Text = str | os.PathLike[str]
Value = Text | int | float | bool | Sequence[Text | int | float] | None

# The exit codes of verdicts (docs/contract.md).
VERDICTS = frozenset({0, 3, 4, 5, 6})
ERROR_SCHEMA = "specdec.error/1"  # schema of what a failed command prints
# The program ends within ten seconds of the first signal, so this is a sufficient limit.
GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class Flag:
    """How a keyword argument is given to the program. `off` is the flag for the value False, such as "--no-NAME", if
    the program has it."""

    name: str
    kind: str  # "positional", "flag" or "value"
    is_list: bool = False
    off: str = ""


@dataclass(frozen=True)
class Command:
    """A command, its keyword arguments, and what it prints."""

    words: tuple[str, ...]
    flags: Mapping[str, Flag]
    results: tuple[type[Result], ...] = ()
    exit_codes: frozenset[int] = frozenset()


def _is_python_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:  # the file is executable but not readable
        return False
    return first.startswith(b"#!") and b"python" in first


def _beside() -> list[Path]:
    package = Path(__file__).resolve().parent
    found = [package / "tree" / "bin" / "specdec"]  # if installed as a wheel
    if package.parent.name == "dist-packages":  # in an install tree: PREFIX/lib/python3/dist-packages/specdec
        found.append(package.parents[3] / "bin" / "specdec")
    return [path for path in found if os.access(path, os.X_OK)]


def find_program() -> Path:
    """Returns the path of the program: SPECDEC_BIN from the environment, else the program installed with this package,
    else the first `specdec` on PATH that is not a Python script. Raises ProgramNotFound."""
    given = os.environ.get("SPECDEC_BIN")
    if given:
        if not os.path.isfile(given) or not os.access(given, os.X_OK):
            raise ProgramNotFound(f"SPECDEC_BIN: {given} is not a program", 2)
        return Path(given)
    for path in _beside():
        return path
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("specdec", path=folder or os.curdir)
        if found and not _is_python_script(found):
            return Path(found)
    raise ProgramNotFound("no specdec program found: put it on PATH, or set SPECDEC_BIN to it", 2)


def _words(value: object, flag: Flag) -> list[str]:
    items = [value] if isinstance(value, str | os.PathLike) or not isinstance(value, Sequence) else list(value)
    words = [os.fspath(item) if isinstance(item, os.PathLike) else str(item) for item in items]
    return [",".join(words)] if flag.is_list else words


def arguments_of(command: Command, given: Mapping[str, Value]) -> list[str]:
    """Returns the command line without the program. Positional arguments precede the flags, because a flag that accepts
    several values would take them."""
    positional: list[str] = []
    flags: list[str] = []
    for key, value in given.items():
        flag = command.flags.get(key)
        if flag is None:
            raise UsageError(f"{' '.join(command.words)} has no argument {key}", 2)
        if value is None or (value is False and not flag.off):
            continue
        if flag.kind == "flag":
            flags.append(flag.name if value else flag.off)
        elif flag.kind == "positional":
            for word in _words(value, flag):
                if word.startswith("-"):
                    raise UsageError(
                        f"{key}: found '{word}', which the program would read as a flag: write ./{word}", 2
                    )
                positional.append(word)
        else:
            flags += [f"{flag.name}={word}" for word in _words(value, flag)]
    return [*command.words, *positional, *flags]


def _copy(source: IO[str], last: deque[str]) -> None:
    for line in source:
        sys.stderr.write(line)
        if line.strip():
            last.append(line.strip())


def _exit_code(process: subprocess.Popen[str]) -> int:
    """Returns the exit code as a shell shows it: 128 + the signal for a program that a signal ended."""
    code = process.returncode
    return code if code >= 0 else 128 - code


def _finish(process: subprocess.Popen[str], command: Sequence[str], timeout: float | None) -> str:
    """Returns all of stdout. Stops the program after `timeout` seconds, or if this thread is interrupted."""
    assert process.stdout
    passed = threading.Event()

    def stop() -> None:
        passed.set()
        process.terminate()

    timer = threading.Timer(timeout, stop) if timeout is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        out = process.stdout.read()
        process.wait()
    except BaseException:
        # On Ctrl-C the terminal has sent SIGINT to the program too; a second signal would end the program at once.
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    finally:
        if timer:
            timer.cancel()
    if passed.is_set():
        raise Interrupted(f"stopped after {timeout} seconds", _exit_code(process), command)
    return out


def execute(
    arguments: Sequence[str], timeout: float | None = None, cwd: Text | None = None
) -> tuple[int, str, str, list[str]]:
    """Runs the program. Copies its stderr to sys.stderr. Returns exit code, stdout, last line of stderr, command."""
    command = [str(find_program()), *arguments]
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise ProgramNotFound(f"{command[0]}: cannot be started: {error.strerror}", 2, command) from error
    last: deque[str] = deque(maxlen=1)
    assert process.stderr
    reader = threading.Thread(target=_copy, args=(process.stderr, last), daemon=True)
    reader.start()
    with process:
        out = _finish(process, command, timeout)
        reader.join()
    return _exit_code(process), out, last[0] if last else "", command


def _error(message: str, exit_code: int, command: Sequence[str], result: Any) -> SpecdecError:
    kind: Callable[..., SpecdecError] = BY_EXIT_CODE.get(exit_code, SpecdecError)
    text = message.removeprefix("specdec: ").removeprefix("error: ")
    return kind(text or f"ended with exit code {exit_code}", exit_code, command, result)


def run_command(
    command: Command,
    common: Mapping[str, Value],
    given: Mapping[str, Value],
    *,
    timeout: float | None = None,
    cwd: Text | None = None,
) -> Result:
    """Runs a command with --json and returns the object that it printed. `common` are the flags of the program
    itself."""
    arguments = arguments_of(command, given)
    program = Command((), COMMON)
    exit_code, out, last, line = execute(["--json", *arguments_of(program, common), *arguments], timeout, cwd)
    value: Any = None
    if out.strip():
        try:
            value = json.loads(out)
        except ValueError as error:
            raise UnexpectedOutput(f"stdout is not one JSON object: {error}", exit_code, line) from error
    if not isinstance(value, dict):
        raise _error(last, exit_code, line, value)
    if value.get("schema") == ERROR_SCHEMA:
        raise _error(str(value.get("message") or last), exit_code, line, None)
    if exit_code not in VERDICTS | command.exit_codes:
        raise _error(last, exit_code, line, value)
    for kind in command.results:
        if kind.SCHEMA == value.get("schema"):
            return decode_result(kind, value, exit_code)
    names = " or ".join(kind.SCHEMA for kind in command.results)
    raise UnexpectedOutput(f"schema: expected {names}, found {value.get('schema')!r}", exit_code, line, value)


COMMON: Mapping[str, Flag] = {
    "config": Flag("--config", "value"),
    "quiet": Flag("--quiet", "flag"),
    "verbose": Flag("--verbose", "flag"),
    "log_format": Flag("--log-format", "value"),
}
