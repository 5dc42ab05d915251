"""Builds the wheels from the build tree and installs them in a new Python environment: first specdec-core alone, then
the engine. For the engine, the environment gets only the files of LibTorch that a CPU needs."""

import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

from specdec_run import BUILD, SKIP, SOURCE, expect
from tiny_model import write_tiny_model, write_traffic

packaging = os.environ.get("SPECDEC_PACKAGING_PYTHON")
if not packaging:
    print("SKIPPED: SPECDEC_PACKAGING_PYTHON is not set: run in the environment of cmake/setup.sh --env")
    sys.exit(SKIP)
cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M))
site_packages = Path(cache["Torch_DIR"]).parents[3]
version = (SOURCE / "VERSION").read_text().strip()
work = Path(tempfile.mkdtemp(prefix="specdec-wheel-"))
venv = work / "venv"
# The files of LibTorch that the Dockerfile copies for CPUs.
CPU_FILES = re.search(r"cpu\) cp -aL --parents (.*?) /torch", (SOURCE / "Dockerfile").read_text().replace("\\\n", " "))


def bare(*command, code=0):
    """Runs a command with only PATH and HOME in its environment. Fails unless it ends with `code`, an exit code or a
    set of them."""
    environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(work)}
    done = subprocess.run(
        [str(c) for c in command], env=environment, capture_output=True, text=True, timeout=300, cwd=work
    )
    fits = done.returncode in (code if isinstance(code, set) else {code})
    what = " ".join(Path(str(c)).name for c in command[:3])
    expect(fits, f"{what}: exit {done.returncode} {'' if fits else done.stderr[-600:]}")
    return done


def build():
    """Makes the wheels twice, checks that both have the same bytes, and returns the first ones."""
    made = []
    for name in ("first", "second"):
        done = subprocess.run(
            [packaging, SOURCE / "cmake/wheel.py", BUILD, work / name], capture_output=True, text=True
        )
        expect(done.returncode == 0, f"wheel.py {done.stderr[-2000:]}")
        made.append(sorted((work / name).glob("*.whl")))
    for first, second in zip(*made, strict=True):
        expect(first.name == second.name and first.read_bytes() == second.read_bytes(), f"{first.name} twice the same")
    engine, core = sorted(made[0], key=lambda path: "core" in path.name)
    return core, engine


def check_files(wheel, requires):
    names = zipfile.ZipFile(wheel).namelist()
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(zipfile.ZipFile(wheel).read(info + "/METADATA").decode())
    expect(metadata["Version"] == version and metadata["License-Expression"] == "Apache-2.0", f"{info}: metadata")
    expect(metadata.get_all("Requires-Dist", []) == requires, f"{info}: needs {metadata.get_all('Requires-Dist')}")
    expect(f"{info}/licenses/LICENSE" in names and f"{info}/sboms/sbom.cdx.json" in names, "licence and bill")
    links = [i.filename for i in zipfile.ZipFile(wheel).infolist() if stat.S_ISLNK(i.external_attr >> 16)]
    expect(not links and not any(".." in name for name in names), f"{len(names)} files, none a link {links}")
    tag = re.search(rf"-{re.escape(version)}-py3-none-manylinux_2_(\d+)_{platform.machine()}\.whl$", wheel.name)
    expect(tag, f"the tag of {wheel.name}")
    release = Path("/etc/os-release").read_text()
    if 'VERSION_ID="12"' in release and "ID=debian" in release:
        expect(int(tag[1]) <= 34, f"what Debian 12 built runs where glibc is 2.34: 2.{tag[1]}")
    written = (zipfile.ZipFile(wheel).read(info + "/WHEEL")).decode()
    expect(wheel.name.split("-none-")[1].removesuffix(".whl") in written, "name and WHEEL have the same tag")


def install(*wheels):
    bare(venv / "bin/python", "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", *wheels)


def check_core(core):
    before = {path for path in venv.rglob("*")}
    install(core)
    size = sum(p.stat().st_size for p in venv.rglob("*") if p not in before and p.is_file() and not p.is_symlink())
    expect(size < 60e6, f"{size / 1e6:.1f} MB installed, the limit is 60")
    specdec = venv / "bin/specdec"
    expect(bare(specdec, "--version").stdout == f"specdec {version}\n", "specdec --version")
    expect(
        bare(venv / "bin/python", "-m", "specdec", "--version").stdout == f"specdec {version}\n", "python -m specdec"
    )
    link = work / "specdec-link"
    link.symlink_to(specdec)
    expect(bare(link, "--version").stdout, "through a symbolic link, as pipx makes them")
    expect((venv / "share/man/man1/specdec-monitor-check.1").exists(), "manual pages")
    expect((venv / "share/bash-completion/completions/specdec").exists(), "completion")
    refused = bare(specdec, "generate", "--target", model, "--prompt", "a", code=2)
    expect("pip install specdec" in refused.stderr.splitlines()[-1], f"what is missing: {refused.stderr}")
    program = (
        "import json, specdec\n"
        f"r = specdec.data_ingest('{traffic}', target='{model}', out='data')\n"
        "print(json.dumps(r.raw))\n"
    )
    told = json.loads(bare(venv / "bin/python", "-c", program).stdout)
    expect((work / "data/index.json").exists(), f"the Python package ingests {told.get('schema')}")


def check_engine(engine):
    (site,) = venv.glob("lib/python3*/site-packages")
    for file in CPU_FILES[1].split():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site_packages / file, site / file)
    install(engine)
    specdec = venv / "bin/specdec"
    answer = bare(specdec, "generate", "--target", model, "--prompt", "a", "--max-tokens", 4, "--threads", 1)
    expect(answer.stdout, "the engine runs with the torch of its own environment, without CUDA's libraries")
    doctor = bare(specdec, "doctor").stdout
    expect(re.search(rf"^ok +engine +{re.escape(str(site))}", doctor, re.M), f"doctor: {doctor}")
    gate = ["--target", model, "--draft", model, "--data", "data", "--out", "gate", "--threads", 1]
    effort = [
        "--split",
        "all",
        "--rollout-requests",
        8,
        "--rollout-tokens",
        16,
        "--speed-prompts",
        2,
        "--speed-tokens",
        16,
    ]
    verdict = bare(specdec, "--json", "validate", *gate, *effort, code={0, 3, 4, 6})
    expect(json.loads(verdict.stdout)["verdict"], "a gate's verdict")


def check_core_again():
    """Removes the engine and checks that the core alone packages the pair and monitors it."""
    bare(venv / "bin/python", "-m", "pip", "uninstall", "--yes", "--quiet", "specdec")
    specdec = venv / "bin/specdec"
    pair = ["--target", model, "--draft", model, "--report", "gate/report.json", "--store", "store"]
    bare(specdec, "package", *pair, "--allow-failed", "--channel", "production")
    state = ["--package", "store:production", "--state", "state.db"]
    checked = json.loads(bare(specdec, "--json", "monitor", "check", *state, code=4).stdout)
    expect(checked["verdict"] == "inconclusive", f"without the engine: monitor check says {checked['verdict']}")


model, traffic = work / "model", work / "traffic.jsonl"
try:
    wheels = build()
    check_files(wheels[0], [])
    check_files(wheels[1], [f"specdec-core=={version}", "torch>=2.11,<2.12"])
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    subprocess.run([python, "-m", "venv", venv], check=True)
    write_tiny_model(model, layers=1, seed=1)
    write_traffic(traffic, 60)
    check_core(wheels[0])
    check_engine(wheels[1])
    check_core_again()
finally:
    shutil.rmtree(work, ignore_errors=True)
