#!/usr/bin/env python3
"""contraction_test.py BUILD: checks that nvcc does not contract the multiply-adds of verify.cu, which would round
otherwise than the host. Compiles the file once more with contraction: that must give more fused operations than the
object of the build has. Needs cuobjdump."""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import cuda_tools


def fused(thing):
    return cuda_tools.output([cuda_tools.tool("cuobjdump"), "-sass", str(thing)]).count("DFMA")


def main():
    build = sys.argv[1]
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "specdec_cuda"], capture_output=True, text=True)
    command = next(line for line in commands.stdout.splitlines() if line.endswith("verify.cu.o"))
    words = shlex.split(command)
    found = fused(Path(build) / words[-1])
    with tempfile.TemporaryDirectory() as work:
        words[words.index("-MF") + 1] = str(Path(work) / "verify.d")
        words[-1] = str(Path(work) / "verify.o")
        subprocess.run([*words, "-fmad=true"], cwd=build, check=True)
        contracted = fused(words[-1])
    print(f"contraction_test: verify.cu has {found} fused operations, with contraction {contracted}")
    sys.exit(0 if 0 < found < contracted else 1)


main()
