"""Exceptions for commands that fail. A command that ends with a verdict does not fail; it returns a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class SpecdecError(Exception):
    """The exception for a command that failed. `message` is the last line that the command wrote to stderr. `result` is
    the JSON object that it printed although it failed, None if it printed none."""

    def __init__(self, message: str, exit_code: int = 1, command: Sequence[str] = (), result: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.command = tuple(command)
        self.result = result


class ProgramNotFound(SpecdecError):
    """There is no specdec program to call."""


class UnexpectedOutput(SpecdecError):
    """The program printed JSON that this package does not know, such as another schema version."""


class UsageError(SpecdecError):
    """A flag or a setting is wrong (exit code 2)."""


class InputError(SpecdecError):
    """A file of a model, of data or of a package is missing or malformed (exit code 7)."""


class DeviceError(SpecdecError):
    """A device ran out of memory or failed (exit code 8)."""


class InputOutputError(SpecdecError):
    """A disk is full, cannot be read or must not be written (exit code 74)."""


class TryAgain(SpecdecError):
    """The same command may succeed later: an endpoint is down, a lock is held, or a signal stopped it (exit code
    75)."""


class Interrupted(SpecdecError):
    """A signal stopped a command that does not resume (exit codes 130 and 143), or `timeout` has passed."""


BY_EXIT_CODE: dict[int, type[SpecdecError]] = {
    2: UsageError,
    7: InputError,
    8: DeviceError,
    74: InputOutputError,
    75: TryAgain,
    130: Interrupted,
    143: Interrupted,
}
