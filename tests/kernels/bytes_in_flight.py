#!/usr/bin/env python3
"""bytes_in_flight.py LIBRARY: reads from libspecdec_cuda.so how many bytes of weights each kernel of a product keeps on
their way to a multiprocessor, and fails if it is less than 64 KiB at any number of rows. By Little's law a GPU that
reads 4.8 TB/s with a latency of 0.8 us needs 30 KB under way on each of its 132 multiprocessors all the time.

How it counts. The main loop of such a kernel waits for a group of copies to shared memory, begins another group, and
multiplies what has arrived (engine/kernels/cuda/warp_ring.h). In the loop's instructions, `DEPBAR.LE SB0, N` lets the
last N groups go on, so N + 1 of them are under way before the first use of one, and between two of the waits stand
the copies (LDGSTS) of one group. A copy of 16 bytes by every lane counts as 512 bytes. Copies by some lanes only,
which are of scales, and loads into registers count nothing. Blocks of a multiprocessor are limited by its registers,
threads and shared memory; a small matrix may have fewer. Only kernels whose x is aligned (kVectors) are counted. More
rows than a kernel's are several blocks of it.

Needs cuobjdump, which comes with the CUDA toolkit and with triton."""

import pathlib
import re
import sys

import cuda_tools

LEAST = 64 * 1024
REGISTERS, THREADS = 65536, 2048  # of a multiprocessor
SHARED_KIB = {"sm_80": 164, "sm_90": 228, "sm_100": 228}
RESERVED_BYTES = 1024  # of shared memory for each block
WARPS = 8
HEADER = pathlib.Path(__file__).parents[2] / "engine/kernels/cuda/warp_ring.h"
KERNEL = re.compile(
    r"rows_linear_(?:quantised_)?tilesI(?P<type>6__half|13__nv_bfloat16)"
    r"(?:NS1_\d+(?P<weights>Int8Weights|GroupQuantisedWeights)IS4_(?:LNS0_7PackingE(?P<packing>\d)E)?E)?E?"
    r"Li(?P<tiles>\d+)E(?:Li(?P<groups>\d+)E)?Lb(?P<vectors>\d)ELb(?P<gated>\d)E"
)
PACKINGS = {"2": "4 bits", "3": "8 bits", "4": "E4M3"}
ROWS = {"1": "1-8", "2": "9-16", "4": "17-32", "8": "33-64"}  # of the tiles of a block


def copies_of(code):
    """Returns the copies of a group by all lanes, and the groups under way, in the loop that waits for copies."""
    code = [(int(at, 16), text) for at, text in code]
    for place, (at, text) in enumerate(code):
        wait = re.match(r"DEPBAR\.LE SB0, 0x([0-9a-f]+)", text)
        if not wait or wait[1] == "0":
            continue
        ends = [
            i
            for i, (_, other) in enumerate(code[place:], place)
            if (back := re.match(r"(?:@!?U?P\d+ )?BRA(?:\.U)? (?:!?U?P\d+, )?0x([0-9a-f]+)", other))
            and int(back[1], 16) <= at
        ]
        loop = [other for _, other in code[place : ends[0]]] if ends else []
        return sum(other.startswith("LDGSTS") and ".128 " in other for other in loop), int(wait[1], 16) + 1
    return 0, 0


def kernels_of(library):
    """Returns (architecture, name): registers, shared bytes and instructions, of the products' kernels."""
    found, architecture, name = {}, None, None
    for line in cuda_tools.output([cuda_tools.tool("cuobjdump"), "-res-usage", library]).splitlines():
        if arch := re.match(r"arch = (sm_\d+)", line):
            architecture = arch[1]
        if function := re.match(r" *Function (\S+):", line):
            name = function[1]
        if "STACK:" in line and KERNEL.search(name):
            use = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            found[architecture, name] = [use["REG"], use["SHARED"], []]
    for line in cuda_tools.output([cuda_tools.tool("cuobjdump"), "-sass", library]).splitlines():
        if arch := re.match(r"\s*arch = (sm_\d+)", line):
            architecture = arch[1]
        if function := re.match(r"\s*Function : (\S+)", line):
            name = function[1]
        if (instruction := re.match(r"\s*/\*([0-9a-f]{4,5})\*/ +([^;]*);", line)) and (architecture, name) in found:
            found[architecture, name][2].append(instruction.groups())
    return found


def main():
    ring = int(re.search(r"kRingBytes = (\d+) \* 1024;", HEADER.read_text())[1]) * 1024
    lines, faults, sizes = [], [], set()
    for (architecture, name), (registers, shared, code) in kernels_of(sys.argv[1]).items():
        kernel = KERNEL.search(name)
        if kernel["vectors"] == "0" or architecture not in SHARED_KIB:
            continue
        weights = "int8" if kernel["weights"] == "Int8Weights" else PACKINGS.get(kernel["packing"], "16 bits")
        shared = max(shared, RESERVED_BYTES) + ring
        blocks = min(
            REGISTERS // (-(-registers // 8) * 8 * WARPS * 32),
            THREADS // (WARPS * 32),
            SHARED_KIB[architecture] * 1024 // shared,
        )
        copies, groups = copies_of(code)
        bytes_in_flight = blocks * WARPS * groups * copies * 32 * 16
        line = (
            f"{architecture:6} {weights:7} {'fp16' if 'half' in kernel['type'] else 'bf16'}  "
            f"{ROWS[kernel['tiles']]:5} {kernel['groups'] or '2':>5} {'gated' if kernel['gated'] == '1' else 'plain'}"
            f" {registers:9} {shared:7} {blocks:6} {copies:6} {groups:6} {bytes_in_flight / 1024:8.0f} KiB"
        )
        lines.append(line)
        sizes.add((architecture, weights, kernel["tiles"]))
        if bytes_in_flight < LEAST:
            faults.append(line)
    print("arch   weights x     rows  tiles       registers  shared blocks copies groups in flight")
    print("\n".join(sorted(lines)))
    for architecture in {size[0] for size in sizes} or {"sm_90"}:
        for weights, tiles in [("16 bits", "1248")] + [(name, "124") for name in ("int8", *PACKINGS.values())]:
            faults += [
                f"{architecture} {weights}: there is no kernel of {ROWS[count]} rows"
                for count in tiles
                if (architecture, weights, count) not in sizes
            ]
    for fault in faults:
        print("bytes_in_flight: too little:", fault)
    sys.exit(1 if faults else 0)


main()
