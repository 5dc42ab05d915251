"""The CUDA toolkit's programs, for tests that read compiled kernels. A test without them is skipped (exit code 77)."""

import importlib.util
import os
import shutil
import subprocess
import sys


def skip(why):
    print(f"{os.path.basename(sys.argv[0])}: skipped: {why}")
    sys.exit(77)


def tool(name):
    """Returns the path of cuobjdump or another program that comes with the CUDA toolkit and with triton."""
    if found := shutil.which(name):
        return found
    folders = [os.path.join(os.environ.get("CUDA_HOME", ""), "bin")]
    if triton := importlib.util.find_spec("triton"):
        folders.append(os.path.join(os.path.dirname(triton.origin), "backends/nvidia/bin"))
    for folder in folders:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    skip(f"there is no {name}")


def compiler(path):
    """Returns the path of nvcc as CMake found it."""
    if not os.path.exists(path):
        skip("there is no nvcc")
    return path


def output(command):
    """Returns what a program prints. If it fails, ends the test with what it said."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout
