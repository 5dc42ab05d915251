#!/usr/bin/env python3
"""wheel.py BUILD OUT: makes the wheels of the build tree BUILD in the folder OUT (`make wheel`).

  specdec-core  the program without the half that runs models, the Python package, manual pages and completion
  specdec       the engine and the demo's models. It needs specdec-core of the same version and torch 2.11, whose
                libraries it finds in the same Python environment. A build without LibTorch makes no such wheel

auditwheel reads the binaries and decides the tag, manylinux_2_34 for builds on Debian 12. A library that neither the
wheels, nor torch, nor every manylinux system has is an error. The same commit gives the same bytes."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOLS = os.path.dirname(sys.executable)  # the environment of cmake/packaging.txt
TREE = os.path.join("specdec", "tree")
TORCH = ">=2.11,<2.12"
# The path from specdec/tree/libexec to the torch/lib of the same site-packages.
TORCH_LIB = "../../../torch/lib"
TORCH_LIBRARIES = ("libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libcudart.so*", "libcublas*.so*", "libnccl.so*")
METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: {summary}
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.10
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
{requires}Description-Content-Type: text/markdown

{description}"""
CORE_SUMMARY = "specdec without the half that runs models: monitor, package and data"
SUMMARY = "keeps the draft model of speculative decoding healthy: distil, gate, package, serve, monitor"


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(c) for c in command)}\n{done.stdout}{done.stderr}wheel: failed")
    return done.stdout


def move(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.move(source, target)


def make_self_contained(folder):
    """Keeps one file per library, under the name by which it is loaded, because a wheel has no symbolic links. Sets the
    run path of each library so that it finds the others."""
    for path in sorted(glob.glob(os.path.join(folder, "*.so*"))):
        if os.path.islink(path):
            os.remove(path)
    for path in sorted(glob.glob(os.path.join(folder, "*.so*"))):
        soname = run(os.path.join(TOOLS, "patchelf"), "--print-soname", path).strip()
        run(os.path.join(TOOLS, "patchelf"), "--force-rpath", "--set-rpath", "$ORIGIN", path)
        if soname != os.path.basename(path):
            os.rename(path, os.path.join(folder, soname))


def core(stage, wheel):
    """Moves the files of specdec-core from the install tree to the folder of the wheel."""
    tree = os.path.join(wheel, TREE)
    move(os.path.join(stage, "lib/python3/dist-packages/specdec"), os.path.join(wheel, "specdec"))
    move(os.path.join(stage, "bin/specdec"), os.path.join(tree, "bin/specdec"))
    move(os.path.join(stage, "lib/specdec"), os.path.join(tree, "lib/specdec"))
    make_self_contained(os.path.join(tree, "lib/specdec"))
    for folder in ("bash-completion", "zsh", "fish", "man"):
        move(os.path.join(stage, "share", folder), os.path.join(wheel, ".data/data/share", folder))
    script = os.path.join(wheel, ".data/scripts/specdec")
    os.makedirs(os.path.dirname(script))
    shutil.copyfile(os.path.join(SOURCE, "cli/python/specdec_script.py"), script)
    os.chmod(script, 0o755)


def engine(stage, wheel):
    """Moves the engine and the demo's models to the folder of the wheel."""
    tree = os.path.join(wheel, TREE)
    move(os.path.join(stage, "libexec"), os.path.join(tree, "libexec"))
    move(os.path.join(stage, "share/specdec"), os.path.join(tree, "share/specdec"))
    path = os.path.join(tree, "libexec")
    rpath = f"$ORIGIN/../lib/specdec:$ORIGIN/{TORCH_LIB}"
    run(os.path.join(TOOLS, "patchelf"), "--force-rpath", "--set-rpath", rpath, os.path.join(path, "specdec-engine"))
    with open(os.path.join(path, "torch-lib"), "w") as file:  # cli/exec_engine.cpp reads it
        file.write(TORCH_LIB + "\n")


def pack(wheel, documents, name, version, summary, requires, out, excluded):
    """Writes the metadata, packs the folder, and lets auditwheel choose the tag: the oldest system that can run it."""
    if os.path.isdir(os.path.join(wheel, ".data")):
        os.rename(os.path.join(wheel, ".data"), os.path.join(wheel, f"{name.replace('-', '_')}-{version}.data"))
    info = os.path.join(wheel, f"{name.replace('-', '_')}-{version}.dist-info")
    shutil.copytree(os.path.join(documents, "licences"), os.path.join(info, "licenses"))
    shutil.copyfile(os.path.join(SOURCE, "LICENSE"), os.path.join(info, "licenses/LICENSE"))
    os.makedirs(os.path.join(info, "sboms"))
    shutil.copyfile(os.path.join(documents, "sbom.cdx.json"), os.path.join(info, "sboms/sbom.cdx.json"))
    with open(os.path.join(SOURCE, "README.md")) as file:
        description = file.read()
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write(
            METADATA.format(
                name=name,
                version=version,
                summary=summary,
                requires="".join(f"Requires-Dist: {one}\n" for one in requires),
                description=description,
            )
        )
    (program,) = glob.glob(os.path.join(wheel, TREE, "bin/specdec")) or glob.glob(
        os.path.join(wheel, TREE, "*/*engine")
    )
    machine = machine_of(program)
    with open(os.path.join(info, "WHEEL"), "w") as file:
        file.write(
            f"Wheel-Version: 1.0\nGenerator: specdec wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-linux_{machine}\n"
        )
    plain = tempfile.mkdtemp(dir=os.path.dirname(wheel))
    run(os.path.join(TOOLS, "wheel"), "pack", wheel, "--dest-dir", plain)
    (made,) = glob.glob(os.path.join(plain, "*.whl"))
    exclude = [word for library in excluded for word in ("--exclude", library)]
    options = ["--plat", "auto", "--only-plat", "--wheel-dir", out]
    named = os.path.join(out, f"{name.replace('-', '_')}-{version}-*_{machine}.whl")
    for old in glob.glob(named):
        os.remove(old)
    run(os.path.join(TOOLS, "auditwheel"), "repair", *options, *exclude, made)
    (tagged,) = glob.glob(named)
    check(tagged)
    return tagged


def machine_of(path):
    with open(path, "rb") as file:
        header = file.read(20)
    return {62: "x86_64", 183: "aarch64"}[int.from_bytes(header[18:20], "little")]


def check(wheel):
    """Exits with an error if auditwheel had to add a library, or found only the generic Linux tag."""
    if "-manylinux_" not in wheel:
        sys.exit(f"{wheel}: expected a manylinux tag, found none")
    foreign = [name for name in zipfile.ZipFile(wheel).namelist() if re.match(r"[^/]+\.libs/", name)]
    if foreign:
        sys.exit(f"{wheel}: expected every library to come with the tree, and these came from this machine: {foreign}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, out = (os.path.abspath(path) for path in sys.argv[1:])
    os.makedirs(out, exist_ok=True)
    os.environ["PATH"] = TOOLS + os.pathsep + os.environ["PATH"]
    if "SOURCE_DATE_EPOCH" not in os.environ:
        told = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=SOURCE, capture_output=True, text=True)
        os.environ["SOURCE_DATE_EPOCH"] = told.stdout.strip() or str(int(os.path.getmtime(SOURCE + "/CHANGELOG.md")))
    with open(os.path.join(SOURCE, "VERSION")) as file:
        version = file.read().strip()
    with tempfile.TemporaryDirectory(prefix="specdec-wheel-") as work:
        stage = os.path.join(work, "stage")
        run("cmake", "--install", build, "--prefix", stage, "--strip")
        documents = os.path.join(stage, "share/doc/specdec")
        libraries = [os.path.basename(path) for path in glob.glob(os.path.join(stage, "lib/specdec/*.so*"))]
        wheel = os.path.join(work, "core")
        core(stage, wheel)
        print(pack(wheel, documents, "specdec-core", version, CORE_SUMMARY, [], out, []))
        if not os.path.exists(os.path.join(stage, "libexec/specdec-engine")):
            return
        wheel = os.path.join(work, "engine")
        engine(stage, wheel)
        requires = [f"specdec-core=={version}", f"torch{TORCH}"]
        print(pack(wheel, documents, "specdec", version, SUMMARY, requires, out, [*TORCH_LIBRARIES, *libraries]))


main()
