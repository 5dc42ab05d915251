#!/usr/bin/env python3
"""nightly.py [PART…]: runs everything that is too long for `make test`, in one run with one summary (`make nightly`).

Parts, in this order (all of them if none is named):
  tools       fetches into the cache folder, once: promtool (Debian's prometheus, unpacked and not installed), and the
              Python files of vLLM and SGLang with what they import (tests/package/engines/*.txt; 430 MB over the
              network, 370 MB kept), the chat templates of 70 published models and llama.cpp's graphs, which the
              source archive of llama-cpp-python contains (77 MB over the network), and prometheus_client (64 KB); all
              of it pinned by version and digest. Also, pinned by version alone, an environment with transformers
              and GPTQModel (5 GB), which is built from its source, and one with MLflow (170 MB)
  checks      the tests that `make test` skips without these. If `tools` has not made the engines' packages, the
              summary says so (SPECDEC_ENGINE_PACKAGES and SPECDEC_ENGINE_PYTHON, if set, override what it made)
  faults      faults at every change of a file (SPECDEC_FAULTS=all)
  soak        the long soak (SPECDEC_SOAK_SECONDS, 3600 unless set)
  gpu-pack    the CUDA kernels for all supported GPUs, what they need of a GPU (tests/kernels/resources_test.py), and
              the archive for a machine with a GPU (make gpu-pack)
  asan, tsan  the quick tests under the sanitizers (make asan, make tsan)
  aarch64     builds the half without LibTorch for 64-bit ARM and runs its quick GoogleTests under qemu
              (tests/aarch64.py); the cross compiler, qemu and Debian's libraries for arm64 are fetched once (351 MB)
  tidy        clang-tidy over all sources (make tidy); where clang-tidy-19 is not installed, the summary says so
  story       the story of a draft on SmolLM2-135M-Instruct (make story)
  image       the Dockerfile's instructions in fresh Debian roots, and what they build (tests/e2e/image_root.py). Where
              there is no root, network or mmdebstrap, the summary says so
  fuzz        FUZZ_INPUTS inputs per target (1e7 unless set), the Rust half with coverage counters

A part that fails does not stop the others. The time and the findings of each part are printed when it ends and written
to build/nightly.json; its output goes to build/nightly/PART.log. Exits with 1 if a part failed."""

import hashlib
import importlib.util
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "nightly")
CACHE = os.environ.get("SPECDEC_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "specdec"
)
TOOLS = os.path.join(CACHE, "nightly-tools")
JOBS = os.environ.get("JOBS") or str(os.cpu_count() or 1)
# The version in Debian 12. When apt no longer has this version, pin the one that it has.
PROMETHEUS = "2.42.0+ds-5+deb12u1"
PROMETHEUS_SHA256 = "81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55"  # of the amd64 .deb
PROMTOOL = os.path.join(TOOLS, "prometheus-" + PROMETHEUS, "usr/bin/promtool")
TEMPLATES_URL = (
    "https://files.pythonhosted.org/packages/ec/e9/e7de2b0463ea3ffbf0ede6cb21b58c1258a8f6521aae45ca773a59fe7cf3/"
    "llama_cpp_python-0.3.36.tar.gz"
)
TEMPLATES_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
TEMPLATES = os.path.join(TOOLS, "templates-2-" + TEMPLATES_SHA256[:12])
GRAPHS = os.path.join(TEMPLATES, "graphs")  # llama.cpp's source of each family's graph
ENGINES = os.path.join(ROOT, "tests", "package", "engines")
PROMETHEUS_CLIENT = os.path.join(ROOT, "tests", "monitor", "prometheus_client.txt")
QUANTISERS = os.path.join(ROOT, "tests", "parity", "quantisers.txt")
MLFLOW = os.path.join(ROOT, "tests", "e2e", "mlflow.txt")
CTEST = ["ctest", "--test-dir", "build", "--output-on-failure", "--no-tests=error", "-j", JOBS]


def run(log, command, folder=ROOT, **variables):
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    environment = dict(os.environ, **variables)
    return subprocess.run(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment).returncode


def digest_of(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def tools(log):
    return max(
        fetch_promtool(log),
        fetch_engines(log),
        fetch_templates(log),
        fetch_prometheus_client(log),
        fetch_quantisers(log),
        fetch_mlflow(log),
    )


def fetch_promtool(log):
    folder = os.path.join(TOOLS, "prometheus-" + PROMETHEUS)
    if os.path.exists(os.path.join(folder, ".complete")):
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if code := run(log, ["apt-get", "download", "prometheus:amd64=" + PROMETHEUS], folder):
        return code
    package = os.path.join(folder, next(name for name in os.listdir(folder) if name.endswith(".deb")))
    if digest_of(package) != PROMETHEUS_SHA256:
        log.write(f"{package}: sha256 {digest_of(package)}, expected {PROMETHEUS_SHA256}\n")
        return 1
    code = run(log, ["dpkg-deb", "-x", package, folder])
    return code or completed(folder, [package])


def fetch_templates(log):
    """Extracts the chat templates and llama.cpp's graphs from a source archive, and keeps nothing else of it."""
    if os.path.exists(os.path.join(TEMPLATES, ".complete")):
        return 0
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    os.makedirs(GRAPHS)
    archive = os.path.join(TEMPLATES, "archive.tar.gz")
    with urllib.request.urlopen(TEMPLATES_URL, timeout=60) as reply, open(archive, "wb") as file:
        shutil.copyfileobj(reply, file)
    if digest_of(archive) != TEMPLATES_SHA256:
        log.write(f"{TEMPLATES_URL}: sha256 {digest_of(archive)}, expected {TEMPLATES_SHA256}\n")
        return 1
    with tarfile.open(archive) as files:
        for member in files:
            for pattern, folder in (
                (r"/models/templates/[^/]+\.jinja$", TEMPLATES),
                (r"/llama\.cpp/src/models/[^/]+\.cpp$", GRAPHS),
            ):
                if member.isfile() and re.search(pattern, member.name):
                    with open(os.path.join(folder, os.path.basename(member.name)), "wb") as file:
                        file.write(files.extractfile(member).read())
    return completed(TEMPLATES, [archive])


def prometheus_client_folder():
    return os.path.join(TOOLS, "prometheus-client-" + digest_of(PROMETHEUS_CLIENT)[:12])


def fetch_prometheus_client(log):
    folder = prometheus_client_folder()
    if os.path.exists(os.path.join(folder, ".complete")):
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "install"]
    command = [*pip, "--no-compile", "--target", folder, "--no-deps", "--require-hashes", "-r", PROMETHEUS_CLIENT]
    return run(log, command) or completed(folder, [])


def quantisers_folder():
    return os.path.join(TOOLS, "quantisers-" + digest_of(QUANTISERS)[:12])


def quantisers_python():
    return os.path.join(quantisers_folder(), "bin", "python")


def pinned_in(file):
    with open(file) as lines:
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def fetch_environment(log, folder, *installs):
    """Makes a virtual environment in `folder` by one call of pip install per element of `installs`."""
    if os.path.exists(os.path.join(folder, ".complete")):
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    pip = [os.path.join(folder, "bin", "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    commands = [[*pip, "--no-cache-dir", "install", "--no-compile", *packages] for packages in installs]
    for command in ([sys.executable, "-m", "venv", folder], *commands):
        if code := run(log, command, BUILD_CUDA_EXT="0"):
            return code
    return completed(folder, [])


def fetch_quantisers(log):
    """Makes an environment with transformers, GPTQModel and compressed-tensors (5 GB with CUDA libraries)."""
    pinned = pinned_in(QUANTISERS)
    first = [package for package in pinned if package.startswith(("setuptools", "torch"))]
    return fetch_environment(log, quantisers_folder(), first, ["--no-build-isolation", *pinned])


def mlflow_folder():
    return os.path.join(TOOLS, "mlflow-" + digest_of(MLFLOW)[:12])


def fetch_mlflow(log):
    return fetch_environment(log, mlflow_folder(), pinned_in(MLFLOW))


def quantised_peers(log):
    """Writes quantised checkpoints, and the weights that transformers computes from them, as input of parity_test.
    Returns the folder with both, and the exit code."""
    folder = os.path.join(ROOT, "build", "quantised-peers")
    shutil.rmtree(folder, ignore_errors=True)
    seed = os.environ.get("SPECDEC_QUANTISED_SEED") or str(secrets.randbelow(1 << 32))
    code = run(log, [quantisers_python(), "tests/parity/quantised_peers.py", folder, "--seed", seed])
    if code:
        log.write("nightly: quantised checkpoints are not compared with transformers: their maker failed\n")
    return folder, code


def engines_folder():
    """Returns the folder for SPECDEC_ENGINE_PACKAGES. Its name is a digest of the lock files and, because it holds
    compiled wheels, of the Python version and the machine type."""
    locks = "".join(digest_of(os.path.join(ENGINES, name)) for name in ("engines.txt", "requirements.txt"))
    key = hashlib.sha256((locks + sys.implementation.cache_tag + platform.machine()).encode()).hexdigest()
    return os.path.join(TOOLS, "engines-" + key[:12])


def fetch_engines(log):
    """Unpacks the engines' wheels without their compiled parts, and installs the packages that these import under
    deps/. Uses the torch of this Python instead of fetching another one."""
    folder = engines_folder()
    if os.path.exists(os.path.join(folder, ".complete")):
        return 0
    if importlib.util.find_spec("torch") is None:
        log.write(f"{sys.executable} has no torch, which the engines import: start this by `make nightly`\n")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    wheels = os.path.join(folder, "wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    pinned = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r"]
    for command in (
        [*pip, "download", "-d", wheels, *pinned, os.path.join(ENGINES, "engines.txt")],
        [
            *pip,
            "install",
            "--no-compile",
            "--target",
            os.path.join(folder, "deps"),
            *pinned,
            os.path.join(ENGINES, "requirements.txt"),
        ],
    ):
        if code := run(log, command):
            shutil.rmtree(folder, ignore_errors=True)
            return code
    for name in sorted(os.listdir(wheels)):
        with zipfile.ZipFile(os.path.join(wheels, name)) as wheel:
            for file in wheel.namelist():
                # Makes folders even if no file in them is kept, because SGLang checks that the folders of its kernels
                # exist.
                os.makedirs(os.path.join(folder, os.path.dirname(file)), exist_ok=True)
                if file.endswith(".py") or ".dist-info/" in file and not file.endswith("/"):
                    wheel.extract(file, folder)
    return completed(folder, [wheels])


def completed(folder, leftovers):
    """Removes the downloads from which a folder was made, and marks the folder as complete."""
    for path in leftovers:
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    open(os.path.join(folder, ".complete"), "w").close()
    return 0


def checks(log):
    variables = {"PATH": os.path.dirname(PROMTOOL) + ":" + os.environ["PATH"]}
    named = os.environ.get("SPECDEC_ENGINE_PACKAGES") and os.environ.get("SPECDEC_ENGINE_PYTHON")
    if not named and os.path.exists(os.path.join(engines_folder(), ".complete")):
        variables |= {"SPECDEC_ENGINE_PACKAGES": engines_folder(), "SPECDEC_ENGINE_PYTHON": sys.executable}
    if os.path.exists(os.path.join(TEMPLATES, ".complete")):
        variables |= {"SPECDEC_CHAT_TEMPLATES": TEMPLATES, "SPECDEC_LLAMA_GRAPHS": GRAPHS}
    else:
        log.write("nightly: published chat templates are not tested: `tools` has not fetched them\n")
    if os.path.exists(os.path.join(prometheus_client_folder(), ".complete")):
        variables["PYTHONPATH"] = prometheus_client_folder()
    else:
        log.write("nightly: pages against prometheus_client are not tested: `tools` has not fetched it\n")
    if os.path.exists(os.path.join(mlflow_folder(), ".complete")):
        variables["SPECDEC_MLFLOW_PYTHON"] = os.path.join(mlflow_folder(), "bin", "python")
    else:
        log.write("nightly: examples/metrics_to_mlflow.py is not tested: `tools` has not fetched MLflow\n")
    if not named and "SPECDEC_ENGINE_PACKAGES" not in variables:
        log.write(
            "nightly: the engines' parsers and loaders are not tested: `tools` has not made the engines' packages\n"
        )
    quantised = 0
    if os.path.exists(os.path.join(quantisers_folder(), ".complete")):
        variables["SPECDEC_QUANTISED_PEERS"], quantised = quantised_peers(log)
    else:
        log.write("nightly: quantised checkpoints are not compared with transformers: `tools` has not fetched it\n")
    if os.path.exists(PROMTOOL):
        rules = run(log, [PROMTOOL, "test", "rules", "tests/cli/monitoring/rules_test.yml"])
    else:
        log.write("nightly: the alert rules are not tested: `tools` has not fetched promtool\n")
        rules = 1
    return max(
        rules,
        quantised,
        run(
            log,
            [
                *CTEST,
                "-R",
                "engine_parsers|eagle_loaders|published_templates|prometheus_client|mlflow_example|init_test|parity_test",
            ],
            **variables,
        ),
    )


def faults(log):
    return run(
        log,
        [
            *CTEST,
            "-R",
            "base_test|data_test|package_test|distill_test|distill_run_test|bad_input|crash|loop_test|hub_test",
        ],
        SPECDEC_FAULTS="all",
        SPECDEC_FAULT_SEED=os.environ.get("SPECDEC_FAULT_SEED") or str(secrets.randbelow(1 << 32)),
    )


def soak(log):
    # Does not use ctest, which would end the test after its fixed time limit (tests/e2e/CMakeLists.txt).
    seconds = os.environ.get("SPECDEC_SOAK_SECONDS", "3600")
    return run(
        log, [sys.executable, "tests/e2e/soak_test.py", os.path.join(ROOT, "build")], SPECDEC_SOAK_SECONDS=seconds
    )


def make(target):
    return lambda log: run(log, ["make", "--no-print-directory", target])


def aarch64(log):
    if code := run(log, ["make", "--no-print-directory", "everything", "PRESET=aarch64"]):
        return code
    return run(log, [sys.executable, "tests/aarch64.py", "build-aarch64"], JOBS=JOBS)


def tidy(log):
    if not shutil.which("clang-tidy-19"):
        log.write("nightly: the sources are not tested: clang-tidy-19 is not installed\n")
        return 0
    return run(log, ["make", "--no-print-directory", "tidy"])


def story(log):
    if run(log, [sys.executable, os.path.join(ROOT, "tests", "bench", "smollm2.py")]) == 77:
        log.write("nightly: the story is not tested: the model cannot be fetched\n")
        return 0
    return run(log, ["make", "--no-print-directory", "story"])


def image(log):
    code = run(log, [sys.executable, "tests/e2e/image_root.py"])
    if code != 77:
        return code
    with open(log.name, errors="replace") as f:
        reason = re.search(r"^image: skipped: (.*)$", f.read(), re.M)[1]
    log.write(f"nightly: the image's steps are not tested: {reason}\n")
    return 0


def fuzz(log):
    inputs = os.environ.get("FUZZ_INPUTS", "1e7")
    for command in (
        ["cmake", "--preset", "fuzz", "-DSPECDEC_RUST_COVERAGE=ON"],
        ["cmake", "--build", "build-fuzz", "-j", JOBS],
    ):
        if code := run(log, command):
            return code
    code = run(log, [sys.executable, "tests/fuzz/run.py", "build-fuzz"], FUZZ_INPUTS=inputs, JOBS=JOBS)
    run(log, ["cmake", "--preset", "fuzz", "-DSPECDEC_RUST_COVERAGE=OFF"])
    return code


PARTS = {
    "tools": tools,
    "checks": checks,
    "faults": faults,
    "soak": soak,
    "gpu-pack": make("gpu-pack"),
    "asan": make("asan"),
    "tsan": make("tsan"),
    "aarch64": aarch64,
    "tidy": tidy,
    "story": story,
    "image": image,
    "fuzz": fuzz,
}


def counts(text):
    """Extracts the results of one part of the nightly run from its log."""
    found = {}
    if tests := re.findall(r"(\d+)% tests passed(?:, (\d+) tests failed)? out of (\d+)", text):
        found["tests"] = sum(int(t[2]) for t in tests)
        found["failed"] = re.findall(
            r"^\s*\d+ - (\S+) \((?:Failed|Timeout|SEGFAULT|Subprocess aborted|Not Run)", text, re.M
        )
    if skipped := re.findall(r"^\s*\d+ - (\S+) \(Skipped\)", text, re.M):
        found["skipped"] = skipped
    if untested := re.findall(r"^nightly: (.* not tested: .*)$", text, re.M):
        found["untested"] = untested
    if size := re.search(r"^image: (\d+ MB on a base of \d+ MB)", text, re.M):
        found["size"] = size[1]
    if fuzzed := re.search(r"^fuzz: ([\d,]+) inputs, (.*)$", text, re.M):
        found["inputs"] = int(fuzzed[1].replace(",", ""))
        found["targets"] = fuzzed[2]
    return found


def main():
    names = sys.argv[1:] or list(PARTS)
    for name in names:
        if name not in PARTS:
            sys.exit(f"nightly: {name}: no such part, expected some of: {' '.join(PARTS)}")
    os.makedirs(LOGS, exist_ok=True)
    results = []
    for number, name in enumerate(names, 1):
        print(f"nightly: {number}/{len(names)} {name} … (build/nightly/{name}.log)", flush=True)
        begun = time.monotonic()
        path = os.path.join(LOGS, name + ".log")
        with open(path, "w") as log:
            try:
                code = PARTS[name](log)
            except OSError as error:  # a full disk or a missing program
                log.write(f"{error}\n")
                code = 1
        with open(path, errors="replace") as log:
            found = counts(log.read())
        results.append(
            {
                "part": name,
                "outcome": "ok" if code == 0 else "failed",
                "seconds": round(time.monotonic() - begun, 1),
                **found,
            }
        )
        print(f"nightly: {line_of(results[-1])}", flush=True)
    failed = [r["part"] for r in results if r["outcome"] != "ok"]
    summary = {"outcome": "failed" if failed else "ok", "failed": failed, "parts": results}
    fuzzed = os.path.join(ROOT, "build-fuzz", "fuzz", "summary.json")
    if "fuzz" in names and os.path.exists(fuzzed):
        with open(fuzzed) as f:
            summary["fuzz"] = json.load(f)
    with open(os.path.join(ROOT, "build", "nightly.json"), "w") as f:
        json.dump(summary, f, indent=1)
    print("\nnightly: summary (build/nightly.json)")
    for result in results:
        print("  " + line_of(result))
    print(f"nightly: {summary['outcome']}" + (f", failed: {' '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


def line_of(result):
    more = [
        f"{result['tests']} tests" if "tests" in result else "",
        result.get("size", ""),
        f"{result['inputs']:,} inputs, {result['targets']}" if "inputs" in result else "",
        "failed: " + " ".join(result["failed"]) if result.get("failed") else "",
        "skipped: " + " ".join(result["skipped"]) if result.get("skipped") else "",
        *result.get("untested", []),
    ]
    return f"{result['part']:7} {result['outcome']:6} {result['seconds']:9.1f} s  " + "; ".join(m for m in more if m)


main()
