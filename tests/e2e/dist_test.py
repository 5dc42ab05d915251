"""Checks that the installed tree, moved elsewhere, runs with nothing but a Python environment that has torch."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from specdec_run import BUILD, SOURCE, expect

cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M))
torch_lib = Path(cache["Torch_DIR"]).parents[2] / "lib"
environment = torch_lib.parents[4]  # torch_lib is venv/lib/python3.x/site-packages/torch/lib
work = Path(tempfile.mkdtemp())


def bare(*command, torch=True, **variables):
    """Runs a command with an empty environment except PATH and `variables`. With `torch`, the python3 on PATH has
    torch, as in an activated environment."""
    path = f"{environment}/bin:/usr/bin:/bin" if torch else "/usr/bin:/bin"
    return subprocess.run(
        [str(c) for c in command], env={"PATH": path, **variables}, capture_output=True, text=True, timeout=60, cwd=work
    )


def ldd(file, **variables):
    lines = bare("ldd", file, **variables).stdout.splitlines()
    return {line.split()[0]: line.split("=>")[1].split("(")[0].strip() for line in lines if "=>" in line}


try:
    subprocess.run(
        [cache["CMAKE_COMMAND"], "--install", BUILD, "--prefix", work / "first", "--strip"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    root = work / "elsewhere" / "specdec"
    root.parent.mkdir()
    shutil.move(work / "first", root)

    size = sum(
        f.stat().st_size
        for f in root.rglob("*")
        if f.is_file() and not f.is_symlink() and f.name != "libspecdec_cuda.so"
    )
    # The demo's two models take 12 MiB of the size.
    expect(size < 63 << 20, f"{size / 2**20:.1f} MiB without the CUDA library, the limit is 63")
    binaries = [root / "bin/specdec", root / "libexec/specdec-engine", *(root / "lib/specdec").glob("*.so*")]
    foreign = [str(place) for place in (BUILD, SOURCE, environment, work / "first")]
    for file in binaries:
        expect(
            not re.search(rb"SPECDEC_[A-Z]+_AT\b|SPECDEC_FAULT", file.read_bytes()),
            f"{file.name} holds no fault injection",
        )
        found = ldd(file, LD_LIBRARY_PATH=str(torch_lib))
        wrong = {
            name: path
            for name, path in found.items()
            if path == "not found"
            or (any(path.startswith(f) for f in foreign) and not path.startswith(str(torch_lib.parents[1])))
        }
        if file.parent.name != "specdec":
            wrong |= {
                name: path
                for name, path in found.items()
                if not path.startswith((str(root), str(environment)))
                and not re.match(r"(lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread|resolv|mvec|util)|ld-linux.*)\.so", name)
            }
        expect(
            not wrong,
            f"{file.relative_to(root)} finds its {len(found)} libraries, and none where it was built {wrong or ''}",
        )
        paths = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
        paths = [line for line in paths.splitlines() if "RUNPATH" in line or "RPATH" in line]
        expect(
            all("$ORIGIN" in line and ":" not in line.split("[")[1] for line in paths), f"{file.name}: run path {paths}"
        )

    expect("Apache License" in (root / "share/doc/specdec/LICENSE").read_text(), "its own licence")
    docs = root / "share/doc/specdec"
    text = (docs / "sbom.cdx.json").read_text()
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    expect(problem is None, f"sbom.cdx.json is CycloneDX 1.6 {problem or ''}")
    bill = json.loads(text)
    components = {c["name"]: c for c in bill["components"]}
    lock = dict(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"', (SOURCE / "rust/Cargo.lock").read_text()))
    for crate in ("tokenizers", "minijinja", "llguidance", "parquet"):
        expect(
            components[crate]["version"] == lock[crate] and components[crate]["hashes"],
            f"the bill names {crate} {lock[crate]} and its digest",
        )
    for package in ("libcli11-dev", "libsqlite3-dev", "libre2-dev", "libboost1.81-dev", "uPlot", "torch"):
        expect(package in components, f"the bill names {package}")
    shared = [f.name for f in (root / "lib/specdec").glob("*.so*") if f.name != "libspecdec_rs.so"]
    owned = subprocess.run(
        ["dpkg-query", "--search", *("*/" + name for name in shared)], capture_output=True, text=True
    ).stdout
    missing = [
        name
        for name in shared
        if not any(line.split(":")[0] in components for line in owned.splitlines() if line.endswith("/" + name))
    ]
    expect(not missing, f"the bill names the packages of all {len(shared)} shared libraries {missing or ''}")
    refs = {c["bom-ref"] for c in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    expect(
        len(refs) == len(bill["components"]) + 1
        and all(d["ref"] in refs and set(d["dependsOn"]) <= refs for d in bill["dependencies"]),
        "what depends on what is in the bill, once",
    )
    contained = [c for c in bill["components"] if not c.get("properties")]
    texts = [
        docs
        / "licences"
        / (
            "crates/{name}-{version}"
            if c["purl"].startswith("pkg:cargo")
            else "debian/{name}"
            if c["purl"].startswith("pkg:deb")
            else "{name}"
        ).format(**c)
        for c in contained
    ]
    texts = [t if t.exists() else t.with_name(t.name + ".gz") for t in texts]
    empty = [str(t) for t in texts if not (any(t.iterdir()) if t.is_dir() else t.is_file() and t.stat().st_size)]
    expect(len(texts) > 50 and not empty, f"licence texts of {len(texts)} components {empty or ''}")
    expect((docs / "dependencies.md").exists(), "dependencies.md")

    specdec = root / "bin/specdec"
    expect(bare(specdec, "--help", torch=False).returncode == 0, "specdec --help")
    doctor = bare(specdec, "doctor")
    engine = next(line for line in doctor.stdout.splitlines() if " engine " in line)
    expect(engine.startswith("ok") and str(root) in engine, f"doctor: {engine}")
    answer = bare(
        specdec,
        "generate",
        "--target",
        root / "share/specdec/demo/target",
        "--prompt",
        "",
        "--max-tokens",
        8,
        "--threads",
        1,
    )
    expect(
        answer.returncode == 0 and answer.stdout.strip(),
        f"generate: exit {answer.returncode} {answer.stderr.strip()[-300:]}",
    )
    named = bare(
        specdec,
        "generate",
        "--target",
        root / "share/specdec/demo/target",
        "--prompt",
        "",
        "--max-tokens",
        8,
        "--threads",
        1,
        torch=False,
        SPECDEC_TORCH_LIB=str(torch_lib),
    )
    expect(named.returncode == 0, "generate with SPECDEC_TORCH_LIB")
    if not any(
        (Path(d) / "python3").exists() and list(Path(d).parent.glob("lib/python3*/*-packages/torch/lib"))
        for d in ("/usr/bin", "/bin")
    ):
        without = bare(specdec, "generate", "--target", root / "share/specdec/demo/target", "--prompt", "", torch=False)
        expect(
            without.returncode == 2 and "SPECDEC_TORCH_LIB" in without.stderr.splitlines()[-1],
            "without torch: exit 2 and what to do",
        )
finally:
    shutil.rmtree(work, ignore_errors=True)
