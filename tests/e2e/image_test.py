"""Checks the Dockerfile on a machine without a container runtime. Every COPY must have its source, and every RUN must
be valid shell. The runtime stage must have exactly the packages and LibTorch files that the binaries load. The copied
files must run without any others. The health check is tried on a real server."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from dockerfile import command_of, ignored, stages
from specdec_run import BUILD, SOURCE, expect, run
from tiny_model import write_tiny_model

cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M))
site = Path(cache["Torch_DIR"]).parents[3]  # venv/lib/python3.x/site-packages
work = Path(tempfile.mkdtemp(prefix="specdec-image-"))


def packages_of(stage):
    text = " && ".join(rest for name, rest in stage if name == "RUN")
    found = re.search(r"apt-get install ([^&|;]+)", text)[1].split()
    return {word for word in found if not word.startswith("-")}


def check_structure(before, build, runtime):
    arguments = dict(rest.split("=", 1) for name, rest in before if name == "ARG")
    expect(arguments == {"BUILD_BASE": "debian:12", "RUNTIME_BASE": "debian:12-slim"}, f"bases {arguments}")
    names = {"build"}
    for name, rest in build + runtime:
        if name != "COPY":
            continue
        words = rest.split()
        if words[0].startswith("--from="):
            expect(words[0][7:] in names, f"COPY {rest}: its stage exists")
            continue
        for source in words[:-1]:
            expect(
                (SOURCE / source).exists() and not ignored(SOURCE, source), f"COPY {source} is there and not ignored"
            )
    for name, rest in build + runtime:
        if name == "RUN":
            done = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True)
            expect(done.returncode == 0, f"RUN {rest[:50]}… is valid shell {done.stderr}")
    tracked = subprocess.run(["git", "ls-files"], cwd=SOURCE, capture_output=True, text=True).stdout.splitlines()
    lost = [path for path in tracked if ignored(SOURCE, path)]
    expect(not lost, f"no file of the {len(tracked)} in git is kept from the build {lost[:5] or ''}")
    setup = (SOURCE / "cmake/setup.sh").read_text()
    installed = set(re.search(r"^packages=\((.*?)\)$", setup, re.M | re.S)[1].split())
    expect(packages_of(build) <= installed, f"the build stage installs {packages_of(build)}; cmake/setup.sh the rest")
    last = [name for name, _ in build[-2:]]
    others = [rest for name, rest in build[:-2] if name == "ARG"]
    expect(last == ["ARG", "RUN"] and not others, f"CPU and CUDA share all steps before the last {last} {others}")
    copied = work / "setup/cmake"
    copied.mkdir(parents=True)
    for source in next(rest for name, rest in build if name == "COPY").split()[:-1]:
        shutil.copy2(SOURCE / source, copied)
    done = subprocess.run([copied / "setup.sh", "--env"], capture_output=True, text=True)
    expect("Torch_DIR" in done.stdout and done.returncode == 0, "setup.sh needs no other file than those copied first")
    rules = (SOURCE / "Makefile").read_text()
    expect(re.search(r"^dist:.*\n.*--prefix dist/specdec", rules, re.M), "make dist makes dist/specdec")


def libraries(file, torch):
    """Returns the paths of the shared libraries that a binary loads."""
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(torch)}
    out = subprocess.run(["ldd", file], capture_output=True, text=True, env=environment).stdout
    expect("not found" not in out, f"{Path(file).name} finds all libraries")
    return {Path(line.split("=>")[1].split("(")[0].strip()) for line in out.splitlines() if "=>" in line}


def torch_files(build):
    """Returns the files of LibTorch that the CPU image has, below site-packages."""
    text = " ".join(rest for name, rest in build if name == "RUN")
    return set(re.search(r"cpu\) cp -aL --parents (.*?) /torch", text)[1].split())


def check_libraries(build, runtime, root, opt):
    for file in torch_files(build):
        (opt / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site / file, opt / file)
    loaded = set()
    for binary in (root / "bin/specdec", root / "libexec/specdec-engine"):
        loaded |= libraries(binary, opt / "torch/lib")
    of_torch = {str(path.resolve().relative_to(opt.resolve())) for path in loaded if path.resolve().is_relative_to(opt)}
    expect(of_torch == torch_files(build), f"the files of LibTorch are those that are loaded {sorted(of_torch)}")
    system = [path for path in loaded if not path.resolve().is_relative_to(work)]
    places = [name for path in system for name in (f"*/{path.name}",)]
    owners = subprocess.run(["dpkg-query", "--search", *places], capture_output=True, text=True).stdout
    needed = set()
    for path in system:
        owning = {
            line.split(":")[0]
            for line in owners.splitlines()
            if os.path.realpath(line.split(": ")[-1]) == str(path.resolve())
        }
        expect(len(owning) == 1, f"{path.name} is of one package {owning}")
        needed |= owning
    expect(packages_of(runtime) == needed | {"ca-certificates"}, f"the runtime stage installs {packages_of(runtime)}")


def check_runs(runtime, root, opt):
    values = dict(re.findall(r"(\w+)=(\S+)", next(rest for name, rest in runtime if name == "ENV")))
    copies = dict(rest.split()[1:] for name, rest in runtime if name == "COPY")
    expect(copies == {"/torch": "/opt/torch", "/src/dist/specdec": "/usr/local"}, f"what is copied {copies}")
    expect(values["SPECDEC_TORCH_LIB"] == "/opt/torch/torch/lib", "where LibTorch is found")
    home = work / "home"
    home.mkdir()
    environment = {
        "PATH": f"{root}/bin:/usr/bin:/bin",
        "HOME": str(home),
        "SPECDEC_TORCH_LIB": values["SPECDEC_TORCH_LIB"].replace("/opt/torch", str(opt)),
    }
    model = root / "share/specdec/demo/target"
    command = ["specdec", "generate", "--target", model, "--prompt", "", "--max-tokens", "8", "--threads", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=home)
    expect(done.returncode == 0 and done.stdout.strip(), f"generate with these files alone {done.stderr[-300:]}")
    return environment


def check_health(runtime, environment):
    text = next(rest for name, rest in runtime if name == "HEALTHCHECK")
    command = command_of(text.split("CMD", 1)[1].strip())
    expect(command[:2] == ["/bin/bash", "-c"], "the health check is bash, which has /dev/tcp")
    model = work / "model"
    write_tiny_model(model, layers=1, seed=1)
    certificate, key = work / "cert.pem", work / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    for more in ([], ["--tls-cert", certificate, "--tls-key", key]):
        check_health_of(
            ["specdec", "serve", "--target", model, "--port", "0", "--threads", "1", *more], command, environment
        )


def check_health_of(serve, command, environment):
    server = subprocess.Popen(
        serve,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        port = next(m[1] for m in map(re.compile(r"listening on .*:(\d+)").search, server.stdout) if m)

        def health(port, process):
            script = command[2].replace("/proc/1/", f"/proc/{process}/")
            values = {"PATH": "/usr/bin:/bin", "SPECDEC_SERVE_PORT": str(port)}
            return subprocess.run([*command[:2], script], env=values, capture_output=True, timeout=20).returncode

        for _ in range(600):
            if (code := health(port, server.pid)) == 0:
                break
            time.sleep(0.1)
        expect(code == 0, f"a server that answers is healthy {serve[8:]}")
        expect(health(1, server.pid) != 0, "one that does not answer is not")
        expect(health(1, os.getpid()) == 0, "another command counts as healthy")
    finally:
        server.terminate()
        server.communicate()


def check_user(runtime):
    users = [rest for name, rest in runtime if name == "USER"]
    _, _, _ = run("init", str(work / "init"), "--only", "kubernetes")
    job = (work / "init/kubernetes/specdec-cronjob.yaml").read_text()
    ids = re.search(r"runAsUser: (\d+), runAsGroup: (\d+)", job)
    expect(users == [f"{ids[1]}:{ids[2]}"] and ids[1] != "0", f"the user is that of init's CronJob: {users}")
    version = (SOURCE / "VERSION").read_text().strip()
    expect(f'image: "specdec:{version}"' in job, "the CronJob names the image that the Dockerfile's head builds")
    for file in ("Dockerfile", "docs/install.md"):
        expect("docker build --tag specdec:$(cat VERSION)" in (SOURCE / file).read_text(), f"{file} says how")
    last = [name for name, _ in runtime]
    expect(last.index("USER") > max(i for i, name in enumerate(last) if name in ("RUN", "COPY")), "USER stands last")
    entry = next(rest for name, rest in runtime if name == "ENTRYPOINT")
    expect(command_of(entry) == ["specdec"], "the entry point is specdec")


try:
    before, build, runtime = stages(SOURCE / "Dockerfile")
    check_structure(before, build, runtime)
    root, opt = work / "usr/local", (work / "opt/torch").resolve()
    install = [cache["CMAKE_COMMAND"], "--install", BUILD, "--prefix", root, "--strip"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    check_libraries(build, runtime, root, opt)
    environment = check_runs(runtime, root, opt)
    check_health(runtime, environment)
    check_user(runtime)
finally:
    shutil.rmtree(work, ignore_errors=True)
