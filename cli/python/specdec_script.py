#!python
"""Starts the specdec program of this Python environment. pip writes the environment's interpreter into the first line.
The package itself is not imported, because that would take several times as long as the program needs to start."""

import os
import sys

for folder in sys.path:
    program = os.path.join(folder, "specdec", "tree", "bin", "specdec")
    if os.access(program, os.X_OK):
        try:
            os.execv(program, [program, *sys.argv[1:]])
        except OSError as error:
            sys.exit(f"specdec: error: {program}: cannot be started: {error.strerror}")
print("specdec: error: the program of the wheel specdec-core is missing: install it again", file=sys.stderr)
sys.exit(2)
