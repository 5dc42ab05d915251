#!/usr/bin/env python3
"""resources_test.py LIBRARY [ARCHITECTURE…]: reads the resources of each kernel from libspecdec_cuda.so. No kernel may
spill registers to memory, or use more than 48 KiB of static shared memory, the limit of every GPU. Each kernel must
exist for each of the architectures (80, 90, …), or by default for each one that any kernel has. No kernel that draws
tokens may contain a loop of compare-and-swap, which is what an addition of 64 bits in shared memory compiles to. Needs
cuobjdump, which comes with the CUDA toolkit and with triton."""

import re
import sys

import cuda_tools

SHARED_BYTES = 48 * 1024
DRAW_TOKENS = ("sample_rows", "draft_rows", "verify_tasks", "score_nodes")


def waiting(names):
    """Returns those of the kernels that contain a loop of compare-and-swap."""
    text = cuda_tools.output([cuda_tools.tool("cuobjdump"), "-sass", "-fun", ",".join(names), sys.argv[1]])
    functions = re.split(r"Function : (\S+)", text)[1:]
    bodies = list(zip(functions[::2], functions[1::2]))
    if not bodies:
        sys.exit("resources_test: cuobjdump shows no code")
    return {name for name, body in bodies if re.search(r"\bATOMS?\.\S*(CAS|SPIN)", body)}


def main():
    text = cuda_tools.output([cuda_tools.tool("cuobjdump"), "-res-usage", sys.argv[1]])
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
    drawing = sorted({name for names in kernels.values() for name in names if any(k in name for k in DRAW_TOKENS)})
    if len(drawing) < len(DRAW_TOKENS):
        faults.append(f"of the kernels that draw tokens, {DRAW_TOKENS}, there are only {drawing}")
    for name in waiting(drawing):
        faults.append(f"{name} waits in a loop of compare-and-swap")
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
