"""specdec keeps the draft model of a speculative-decoding deployment healthy, from traffic to drift alarm.

Each function runs one command of the program and returns what it printed as a dataclass:

    import specdec

    gate = specdec.validate(target="models/target", draft="run/draft", data="traffic", out="gate")
    if gate.verdict == "pass":
        specdec.package(target="models/target", draft="run/draft", report="gate/report.json", store="store")
    sys.exit(gate.exit_code)

A verdict is a result, whatever it says (exit codes 0, 3, 4, 5, 6). A command that fails raises a SpecdecError with the
exit code and the last line of stderr. Logs and progress go to sys.stderr while the command runs.
"""

from .commands import *  # noqa: F403
from .commands import __all__ as _functions
from .decode import Result
from .errors import (
    DeviceError,
    InputError,
    InputOutputError,
    Interrupted,
    ProgramNotFound,
    SpecdecError,
    TryAgain,
    UnexpectedOutput,
    UsageError,
)
from .program import find_program
from .results import *  # noqa: F403
from .results import __all__ as _results
from .version import __version__

__all__ = [
    "DeviceError",
    "InputError",
    "InputOutputError",
    "Interrupted",
    "ProgramNotFound",
    "Result",
    "SpecdecError",
    "TryAgain",
    "UnexpectedOutput",
    "UsageError",
    "__version__",
    "find_program",
]
__all__ += _functions
__all__ += _results
