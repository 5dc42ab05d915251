#!/usr/bin/env python3
"""resources_test.py LIBRARY [ARCHITECTURE…]: reads from libspecdec_cuda.so what each kernel needs of a GPU. No kernel
may move registers to memory (spill), use more shared memory than every GPU gives without being asked (48 KiB), or lack
for one of the architectures (80, 90, …; without any, for one that other kernels have). Needs cuobjdump, which comes
with the CUDA toolkit and with triton."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

SHARED_BYTES = 48 * 1024


def cuobjdump():
    if found := shutil.which("cuobjdump"):
        return found
    folders = [os.path.join(os.environ.get("CUDA_HOME", ""), "bin")]
    if triton := importlib.util.find_spec("triton"):
        folders.append(os.path.join(os.path.dirname(triton.origin), "backends/nvidia/bin"))
    for folder in folders:
        if os.path.exists(os.path.join(folder, "cuobjdump")):
            return os.path.join(folder, "cuobjdump")
    print("skipped: there is no cuobjdump")
    sys.exit(77)


def main():
    text = subprocess.run([cuobjdump(), "-res-usage", sys.argv[1]], capture_output=True, text=True, check=True).stdout
    kernels, faults, architecture = {}, [], None
    for line in text.splitlines():
        if found := re.match(r"arch = (sm_\d+)", line):
            architecture = found[1]
        if found := re.match(r" *Function (\S+):", line):
            name = found[1]
            kernels.setdefault(architecture, set()).add(name)
        if "STACK:" in line:
            use = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            if use["STACK"] or use["LOCAL"]:
                faults.append(f"{name} on {architecture} spills registers: {line.strip()}")
            if use["SHARED"] > SHARED_BYTES:
                faults.append(f"{name} on {architecture} has too much shared memory: {line.strip()}")
    expected = {f"sm_{number}" for number in sys.argv[2:]} or set(kernels)
    if set(kernels) != expected:
        faults.append(f"kernels for {sorted(kernels)}, expected {sorted(expected)}")
    if len({frozenset(names) for names in kernels.values()}) != 1:
        faults.append("the architectures have different kernels")
    for fault in faults:
        print("resources_test:", fault)
    print(f"resources_test: {sum(map(len, kernels.values()))} kernels of {len(kernels)} architectures")
    sys.exit(1 if faults or not kernels else 0)


if __name__ == "__main__":
    main()
