"""`python -m specdec ARGUMENTS` is the program itself."""

import os
import sys

from .errors import SpecdecError
from .program import find_program


def main() -> int:
    try:
        program = str(find_program())
        os.execv(program, [program, *sys.argv[1:]])
    except SpecdecError as error:
        print(f"specdec: error: {error.message}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"specdec: error: {program}: cannot be started: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
