#!/usr/bin/env python3
"""aarch64.py BUILD: tests the build of the preset `aarch64` (`make build PRESET=aarch64`) on this machine.

Runs the quick GoogleTests of that build under qemu. Then installs the build to BUILD/tree and checks that every binary
is for aarch64, that the program starts with the libraries of the tree, and that the bill of materials names packages
for arm64. Tests that make no sense under emulation are printed with the reason, in lines that tests/nightly.py counts
as not tested.

Exits with 1 if something failed."""

import json
import os
import re
import shutil
import subprocess
import sys

JOBS = os.environ.get("JOBS") or str(os.cpu_count() or 1)
# CTest entries that this script does not run, with the reason.
LEFT_OUT = {
    "architecture_test": "it reads sources",
    "format": "it reads sources",
    "prometheus_rules": "it reads files",
    "package_engine_parsers_test": "Python starts the program, which this machine cannot without qemu",
    "monitor_simulation_test": "it is a long simulation",
    "specdec_gate_simulation_test": "it is a long simulation",
    "specdec_sampling_test": "it draws millions of answers",
}
# GoogleTest cases that cannot pass under qemu-user, with the reason.
NOT_EMULATED = {
    "ConfinedChild.DiesOfWhatItsLimitsForbid": "qemu accepts RLIMIT_AS and does not apply it",
    "ConfinedService.AJobThatKillsItsWorkerFailsAlone": "qemu accepts RLIMIT_AS and does not apply it",
    "ParquetBytes.WhatCannotBeReadIsAnErrorThatSaysWhy": "qemu accepts RLIMIT_AS and does not apply it",
    "Race.EveryReaderSeesAWholePackage": "its readers are too slow under qemu to meet three packages",
    "Statistics.BoundedMeanCoversAtLeastNominally": "it is a long simulation",
}


def check(holds, text):
    print(("ok      " if holds else "FAILED  ") + text, flush=True)
    return bool(holds)


def run_tests(build):
    for name, reason in (LEFT_OUT | NOT_EMULATED).items():
        print(f"nightly: {name} is not tested on aarch64: {reason}")
    sys.stdout.flush()
    command = ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-j", JOBS, "-L", "fast"]
    command += ["-E", f"^({'|'.join(LEFT_OUT)})$"]
    environment = dict(os.environ, GTEST_FILTER="-" + ":".join(NOT_EMULATED))
    return subprocess.run(command, env=environment).returncode == 0


def test_tree(build):
    with open(os.path.join(build, "CMakeCache.txt")) as f:
        cache = dict(re.findall(r"^(\w+):\w+=(.*)$", f.read(), re.M))
    tree = os.path.join(build, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(
        [cache["CMAKE_COMMAND"], "--install", build, "--prefix", tree, "--strip"], check=True, stdout=subprocess.DEVNULL
    )
    program = os.path.join(tree, "bin", "specdec")
    libraries = os.path.join(tree, "lib", "specdec")
    foreign = []
    for path in [program, *(os.path.join(libraries, name) for name in os.listdir(libraries))]:
        with open(path, "rb") as f:
            if f.read(20)[18:] != b"\xb7\0":  # e_machine of the ELF header must be EM_AARCH64
                foreign.append(path)
    good = check(not foreign, f"the program and its {len(os.listdir(libraries))} files are for aarch64 {foreign or ''}")

    # The emulated programs load the C and C++ libraries from the sysroot for aarch64, and all other libraries from the
    # installed tree.
    emulator = ["qemu-aarch64-static", "-L", os.environ["SPECDEC_SYSROOT_AARCH64"]]
    done = subprocess.run(
        [*emulator, "-E", "LD_TRACE_LOADED_OBJECTS=1", program], capture_output=True, text=True, timeout=60
    )
    loaded = dict(re.findall(r"^\s*(\S+) => (.+) \(0x", done.stdout, re.M))
    outside = sorted(
        name
        for name, path in loaded.items()
        if not os.path.realpath(path).startswith(libraries)
        and not re.match(r"(lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread|resolv)|ld-linux-aarch64)\.so", name)
    )
    good &= check(len(loaded) > 5 and not outside, f"it finds its {len(loaded)} libraries in the tree {outside or ''}")
    done = subprocess.run([*emulator, program, "--json", "help"], capture_output=True, text=True, timeout=60)
    good &= check(done.returncode == 0 and json.loads(done.stdout)["commands"], f"it starts {done.stderr}")

    with open(os.path.join(tree, "share", "doc", "specdec", "sbom.cdx.json")) as f:
        bill = json.load(f)
    packages = [c["purl"] for c in bill["components"] if c["purl"].startswith("pkg:deb/")]
    others = [p for p in packages if not p.endswith(("?arch=arm64", "?arch=all"))]
    good &= check(
        len(packages) > 10 and not others, f"the bill names {len(packages)} packages for arm64 {others or ''}"
    )
    good &= check(not any(c["name"] == "torch" for c in bill["components"]), "and no torch, which nothing here needs")
    return good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = os.path.abspath(sys.argv[1])
    sys.exit(0 if run_tests(build) & test_tree(build) else 1)


main()
