#!/usr/bin/env python3
"""non_coherent_loads_test.py NVCC: compiles all kernels to PTX and follows every address of a non-coherent load
(ld.global.nc) back to the kernel's parameters. Such a load may return what memory held when the kernel started, so it
must not read what the kernel itself writes. nvcc chooses it where __restrict__ promises that nobody writes; the promise
is false for an array that is an input and the output at once. The fibers of the other tests do not know the difference.
The test then sees copies of kernels with false promises fail."""

import collections
import glob
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import cuda_tools

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "engine/kernels/cuda")
PRODUCTS = ("rows_linear_tiles", "rows_linear_quantised_tiles")

# Parameters that must never be read by a non-coherent load although the kernel does not write through them.
COHERENT = {
    "residual": PRODUCTS,  # may be the output itself (RowsProduct)
    "live": PRODUCTS,  # written on the device in the same round, by the kernel that draws a draft's tokens
}
# The parameters that no kernel writes. A kernel that starts before the one ahead of it has ended (griddepcontrol) must
# read all others by coherent loads.
CONSTANT = {"weight", "bias", "up", "up_bias", "order"}

SIGNATURE = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\(([^)]*)\)\s*\{")
ENTRY = re.compile(r"\.entry (\S+?)\((.*?)^\}", re.M | re.S)
INSTRUCTION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s+(.*);$")
REGISTER = re.compile(r"%[a-z]+\d+")
PARAMETER = re.compile(r"_param_(\d+)(?:\+(\d+))?")

Place = collections.namedtuple("Place", "parameter offset fetched")  # `fetched`: an address that memory there holds
Kernel = collections.namedtuple("Kernel", "name parameters read written overlaps early")  # `early`: addresses

# A coherent access, which a kernel that overlaps the previous one must not make before it has waited for it.
EARLY = re.compile(r"\b(?:ld|st|atom|red)\.(?!global\.nc|shared|local|param|const)[\w.]+\s+[^;]*\[(%\w+)")

# Kernels with faults, each with the parameters that must be named.
MADE_UP = """
__global__ void adds_in_place(const float* x, float* out) { out[threadIdx.x] = __ldg(out + threadIdx.x) + *x; }
__global__ void starts_early(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  out[threadIdx.x] = x[threadIdx.x] * weight[threadIdx.x];
}
__global__ void waits_late(const int* ids, float* out) {
  const int id = *ids;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  out[threadIdx.x] = id;
}
"""
MADE_UP_FAULTS = {("adds_in_place", "out"), ("starts_early", "x"), ("waits_late", "ids")}


def signatures(source):
    """Returns the parameters of each kernel in a file as (name, whether it is a number)."""
    kernels = {}
    for name, parameters in SIGNATURE.findall(source):
        parts = [part.strip() for part in parameters.split(",")]
        number = r"(const )?(bool|float|double|int|unsigned|size_t|u?int\d+_t) \w+"
        kernels[name] = [(re.search(r"\w+$", part)[0], bool(re.fullmatch(number, part))) for part in parts]
    return kernels


def instructions(body):
    """Returns (opcode, registers that it sets, text of what it reads) for all instructions that move values."""
    found = []
    for line in body.splitlines():
        if not (match := INSTRUCTION.match(line)) or match[1].startswith(("setp", "bra", "bar", "ret")):
            continue
        opcode, operands = match.groups()
        if opcode.startswith(("st.", "red.")):
            found.append((opcode, [], operands))
        else:
            split = operands.find("}") + 1 if operands.startswith("{") else operands.find(",")
            found.append((opcode, REGISTER.findall(operands[:split]), operands[split:]))
    return found


def places_of(code, parameters):
    """Returns for each register the parameters that its value may be an address from, whatever way the kernel takes."""
    places = collections.defaultdict(set)

    def value(opcode, operands):
        if found := PARAMETER.search(operands):
            number, offset = int(found[1]), int(found[2] or 0)
            is_address = opcode.endswith("64") and not parameters[number][1]
            return {Place(parameters[number][0], offset, False)} if is_address else set()
        inputs = set().union(*(places[register] for register in REGISTER.findall(operands)))
        if opcode.startswith(("ld.", "atom.")):
            is_address = opcode.endswith("64") and ".shared" not in opcode
            return {place._replace(fetched=True) for place in inputs} if is_address else set()
        return set() if opcode.startswith(("shfl", "vote")) else inputs

    size = -1
    while size != (size := sum(map(len, places.values()))):
        for opcode, outputs, operands in code:
            new = value(opcode, operands)
            for register in outputs:
                places[register] |= new
    return places


def kernels_of(ptx, source):
    """Returns the kernels of a file: what each reads by non-coherent loads and what it writes."""
    known, kernels = signatures(source), []
    for symbol, body in ENTRY.findall(ptx):
        name = next((name for name in known if f"{len(name)}{name}" in symbol), None)
        if not name:
            sys.exit(f"the source of {symbol} was not found")
        code = instructions(body)
        places = places_of(code, known[name])
        read, written = set(), set()
        for opcode, _, operands in code:
            is_written = re.match(r"(st|red|atom)\.(?!shared|local|param)", opcode)
            if not is_written and ".global.nc" not in opcode:
                continue
            address = places[REGISTER.search(operands[operands.index("[") :])[0]]
            (written if is_written else read).update(address)
        parameters = [parameter for parameter, _ in known[name]]
        before, waits, _ = body.partition("griddepcontrol.wait")
        early = set().union(*(places[register] for register in EARLY.findall(before))) if waits else set()
        kernels.append(Kernel(name, parameters, read, written, bool(waits), early))
    return kernels


def faults_of(kernels):
    """Returns (kernel, parameter) of all loads that may return old values."""
    faults = set()
    for kernel in kernels:
        bad = kernel.read & kernel.written
        bad |= {place for place in kernel.read if kernel.name in COHERENT.get(place.parameter, ())}
        if kernel.overlaps:
            bad |= {place for place in kernel.read | kernel.early if place.parameter not in CONSTANT}
        faults |= {(kernel.name, place.parameter) for place in bad}
    return faults


def replaced(text, old, new):
    if old not in text:
        sys.exit(f"a file no longer has: {old}")
    return text.replace(old, new)


def main():
    nvcc = cuda_tools.compiler(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        # The type of the numbers does not matter, and one of two takes half the time.
        include = os.path.join(folder, "engine/kernels/cuda")
        os.makedirs(include)
        with open(os.path.join(FOLDER, "device.h")) as f, open(os.path.join(include, "device.h"), "w") as copy:
            copy.write(replaced(f.read(), "  if (dtype == CudaDtype::kHalf) return f(__half{});\n", ""))

        def compiled(name, source):
            path = os.path.join(folder, f"{name}.cu")
            with open(path, "w") as f:
                f.write(source)
            includes = ["-I", folder, "-I", ROOT, "-I", os.path.join(FOLDER, "ptx")]
            cuda_tools.output([nvcc, "-std=c++20", "-arch=compute_90", *includes, "-ptx", "-o", f"{path}.ptx", path])
            with open(f"{path}.ptx") as f:
                return kernels_of(f.read(), source)

        sources = {}
        for path in glob.glob(os.path.join(FOLDER, "*.cu")):
            with open(path) as f:
                sources[os.path.basename(path)[:-3]] = f.read()
        promises = replaced(sources["rows_linear"], "const T* residual", "const T* __restrict__ residual")
        sources |= {"promises": replaced(promises, ", T* out)", ", T* __restrict__ out)"), "made_up": MADE_UP}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            longest = sorted(sources, key=lambda name: -len(sources[name]))
            kernels = dict(zip(longest, pool.map(lambda name: compiled(name, sources[name]), longest)))
    failures = []
    for name, expected in {"promises": {("rows_linear_tiles", "residual")}, "made_up": MADE_UP_FAULTS}.items():
        if (found := faults_of(kernels.pop(name))) != expected:
            failures.append(f"of the faulty copy {name} it names {sorted(found)}, expected {sorted(expected)}")
    all_kernels = [kernel for of_file in kernels.values() for kernel in of_file]
    for parameter, names in COHERENT.items():
        for name in names:
            if not any(kernel.name == name and parameter in kernel.parameters for kernel in all_kernels):
                failures.append(f"no kernel {name} has the parameter {parameter}, which this test names")
    for kernel, parameter in sorted(faults_of(all_kernels)):
        failures.append(f"{kernel} reads {parameter} by non-coherent loads, but it may be written meanwhile")
    loads = {(kernel.name, place) for kernel in all_kernels for place in kernel.read}
    print("\n".join(failures + [f"{len(all_kernels)} kernels, non-coherent loads of {len(loads)} parameters"]))
    sys.exit(1 if failures else 0)


main()
