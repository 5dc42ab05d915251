#!/usr/bin/env python3
"""ptx_operands_test.py NVCC: compiles each function of engine/kernels/cuda/ptx/ptx.h that computes in a kernel whose
operands are words of memory at known places, and follows these words through the machine code to the instruction. Each
must be the operand that ptx.h says, of the type that it says: the fibers of the other tests take another ptx.h, so only
a GPU would show an exchanged operand. Copies of ptx.h with exchanged operands and types must fail. What moves memory
there has operands of different sizes, so ptxas refuses an exchange; bytes_in_flight.py sees its instructions."""

import os
import re
import sys
import tempfile

import cuda_tools

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = os.path.join(ROOT, "engine/kernels/cuda/ptx/ptx.h")
ARCHITECTURES = ("80", "90", "100")
NAMESPACE = "namespace specdec::kernels::cuda {"

KERNELS = """
template <class T> __device__ void multiply_NAME(volatile uint32_t* memory) {
  uint32_t a[4], b[2];
  float sum[4];
  for (int i = 0; i < 4; ++i) a[i] = memory[i];
  for (int i = 0; i < 2; ++i) b[i] = memory[4 + i];
  for (int i = 0; i < 4; ++i) sum[i] = __uint_as_float(memory[6 + i]);
  NAME::mma_m16n8k16<T>(sum, a, b);
  for (int i = 0; i < 4; ++i) memory[10 + i] = __float_as_uint(sum[i]);
}
template <class T> __device__ void add_NAME(volatile uint32_t* memory) {
  const uint32_t a = memory[0], b = memory[1], c = memory[2];
  memory[3] = NAME::fma_pairs<T>(a, b, c);
}
extern "C" __global__ void NAME_mma_bf16(uint32_t* memory) { multiply_NAME<__nv_bfloat16>(memory); }
extern "C" __global__ void NAME_mma_f16(uint32_t* memory) { multiply_NAME<__half>(memory); }
extern "C" __global__ void NAME_fma_bf16(uint32_t* memory) { add_NAME<__nv_bfloat16>(memory); }
extern "C" __global__ void NAME_fma_f16(uint32_t* memory) { add_NAME<__half>(memory); }
"""


def words(begin, end):
    return [f"word {i}" for i in range(begin, end)]


def product(number_type):
    return {10 + i: f"{i} of mma {number_type} {words(0, 4)} {words(4, 6)} {words(6, 10)}" for i in range(4)}


def fused(number_type):
    return {3: f"fma {number_type} {words(0, 2)} word 2"}


# What each kernel must write to which word of its memory.
EXPECTED = {"mma_bf16": product("BF16"), "mma_f16": product("F16"), "fma_bf16": fused("BF16"), "fma_f16": fused("F16")}

# Instructions that copy or order memory accesses. An exchange of their operands, an address of shared memory and one of
# global memory, does not compile, and the fibers' copies and waits test their use.
NOT_ARITHMETIC = ("cp.async", "griddepcontrol", "prefetch")

# Faults of ptx.h: a text that it has, what stands there instead, and the kernels that must fail. All places of the text
# are changed.
FAULTS = [
    ('"r"(a[0]), "r"(a[1])', '"r"(a[1]), "r"(a[0])', {"mma_bf16", "mma_f16"}),
    ('"r"(a[1]), "r"(a[2])', '"r"(a[2]), "r"(a[1])', {"mma_bf16", "mma_f16"}),
    ('"r"(b[0]), "r"(b[1])', '"r"(b[1]), "r"(b[0])', {"mma_bf16", "mma_f16"}),
    ("{%4, %5, %6, %7}, {%8, %9}", "{%4, %5, %8, %9}, {%6, %7}", {"mma_bf16", "mma_f16"}),
    ('"+f"(sum[0]), "+f"(sum[1])', '"+f"(sum[1]), "+f"(sum[0])', {"mma_bf16", "mma_f16"}),
    ("f32.bf16.bf16.f32", "f32.f16.f16.f32", {"mma_bf16"}),
    ("f32.f16.f16.f32", "f32.bf16.bf16.f32", {"mma_f16"}),
    ('"r"(a), "r"(b), "r"(c)', '"r"(a), "r"(c), "r"(b)', {"fma_bf16", "fma_f16"}),
    ("fma.rn.bf16x2", "fma.rn.f16x2", {"fma_bf16"}),
    ("fma.rn.f16x2", "fma.rn.bf16x2", {"fma_f16"}),
    ("fma.rn.f16x2", "fma.rn.ftz.f16x2", {"fma_f16"}),
]


def source_of(headers):
    """Returns a file with the kernels of each of the headers, which are (name, text), each in a namespace."""
    parts = []
    for name, text in headers:
        if text.count(NAMESPACE) != 1:
            sys.exit(f"{HEADER} does not open its namespace once")
        text = text.replace("#pragma once", "").replace(NAMESPACE, f"namespace {name} {{")
        parts.append(text + KERNELS.replace("NAME", name))
    return "".join(parts)


def number_of(register):
    return int(register[1:])


def results(code):
    """Follows the words of memory through a kernel's instructions. Returns what it writes to which word."""
    registers, written = {}, {}
    address = r"(?:desc\[\w+\]\[|\[)R2\.64(?:\+(0x[0-9a-f]+))?\]"
    register = r"(R\d+)(?:\.reuse)?"
    for line in code:
        if found := re.fullmatch(rf"LDG\.E\.STRONG\.SYS (R\d+), {address}", line):
            registers[number_of(found[1])] = f"word {int(found[2] or '0', 16) // 4}"
        elif found := re.fullmatch(rf"STG\.E\.STRONG\.SYS {address}, (R\d+)", line):
            written[int(found[1] or "0", 16) // 4] = registers[number_of(found[2])]
        elif found := re.fullmatch(rf"HMMA\.16816\.F32(\.BF16)? (R\d+), {register}, {register}, {register}", line):
            a, b, c = ([registers[number_of(found[3 + i]) + j] for j in range(n)] for i, n in enumerate((4, 2, 4)))
            for i in range(4):
                registers[number_of(found[2]) + i] = f"{i} of mma {'BF16' if found[1] else 'F16'} {a} {b} {c}"
        elif found := re.fullmatch(rf"HFMA2(?:\.MMA)?(\.BF16_V2)? (R\d+), {register}, {register}, {register}", line):
            factors = sorted(registers[number_of(found[i])] for i in (3, 4))
            number_type = "BF16" if found[1] else "F16"
            registers[number_of(found[2])] = f"fma {number_type} {factors} {registers[number_of(found[5])]}"
        elif found := re.fullmatch(r"MOV (R\d+), (R\d+)", line):
            registers[number_of(found[1])] = registers[number_of(found[2])]
        elif re.match(r"(LDC|MOV)\S* R[123], c\[|U\w+\S* |@!UPT |LDCU\S* U|NOP|EXIT|BRA", line):
            pass  # reads the address of the memory, or ends the kernel
        else:
            return {"unknown instruction": line}
    return written


def instructions(listing):
    """Returns the instructions of each kernel in what cuobjdump printed."""
    kernels = {}
    for line in listing.splitlines():
        if found := re.match(r"\s*Function : (\S+)", line):
            code = kernels.setdefault(found[1], [])
        elif found := re.match(r"\s*/\*[0-9a-f]{4}\*/\s+(.*?)\s*;", line):
            code.append(re.sub(r"\s+", " ", found[1]))
    return kernels


def main():
    nvcc, cuobjdump = cuda_tools.compiler(sys.argv[1]), cuda_tools.tool("cuobjdump")
    cuda_tools.tool("nvdisasm")
    with open(HEADER) as f:
        header = f.read()
    texts = re.findall(r'\basm(?: volatile)?\(\s*"([^"]*)', header)
    if sum(not text.startswith(NOT_ARITHMETIC) for text in texts) != len(EXPECTED):
        sys.exit(f"{HEADER} has other instructions than this test")
    copies = [("as_it_is", header)]
    for i, (old, new, _) in enumerate(FAULTS):
        if old not in header:
            sys.exit(f"{HEADER} no longer has: {old}")
        copies.append((f"fault_{i}", header.replace(old, new)))
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "kernels.cu"), os.path.join(folder, "kernels.cubin")
        with open(source, "w") as f:
            f.write(source_of(copies))
        for architecture in ARCHITECTURES:
            cuda_tools.output([nvcc, "-std=c++20", f"-arch=sm_{architecture}", "-cubin", "-o", binary, source])
            kernels = instructions(cuda_tools.output([cuobjdump, "-sass", binary]))
            for kernel, expected in EXPECTED.items():
                if (found := results(kernels[f"as_it_is_{kernel}"])) != expected:
                    failures.append(f"{kernel} on sm_{architecture} writes {found}, expected {expected}")
                for i, (old, new, failing) in enumerate(FAULTS):
                    if (results(kernels[f"fault_{i}_{kernel}"]) != expected) != (kernel in failing):
                        failures.append(f"{kernel} on sm_{architecture}, with {new} for {old}: wrong verdict")
    print("\n".join(failures + [f"{len(FAULTS)} faults of ptx.h on {len(ARCHITECTURES)} architectures"]))
    sys.exit(1 if failures else 0)


main()
