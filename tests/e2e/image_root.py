"""image_root.py: executes the instructions of the Dockerfile in fresh Debian roots, one for each stage. Then runs the
last root as a container engine would run the image: the entry point as the image's user, as process 1, without a
network, and the health check of a real server. The script replaces a container engine on machines that have none. It
has no layers and no cache of them. It reads the Dockerfile itself and fails at an instruction that it does not know.

mmdebstrap makes the bases debian:12 and debian:12-slim as Debian makes the images of these names. They trust the
certificates in /usr/local/share/ca-certificates of this machine, which some networks need.

Needs root, a network, mmdebstrap and 20 GB. If one of them is missing, prints which one and exits with 77. Prints the
seconds of each step and the sizes of the last root. Runs in a process and a mount namespace of its own, so that no
process and no mount is left, however the script ends."""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from debian_root import BASES, Failure, Stage, make_root, missing, size_of
from dockerfile import command_of, ignored, stages

SOURCE = Path(__file__).resolve().parents[2]
SKIP = 77
RECORD = "steps.json"


class Build:
    """The stages so far, and a record of the completed steps, whose results are in the stages' root folders."""

    def __init__(self, folder, context, given, reuse):
        self.folder, self.context, self.given = folder, context, given
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=context, check=True, capture_output=True, text=True)
        self.files = [f for f in listed.stdout.split("\0") if f and not ignored(context, f) and (context / f).exists()]
        self.record_file = folder / RECORD
        kept = reuse and self.record_file.exists()
        self.record = json.loads(self.record_file.read_text()) if kept else {}
        self.stages, self.names, self.defaults = [], {}, {}
        self.key, self.steps = "", []

    def once(self, what, change):
        """Runs `change` on the current root, and records the step as `what`. Skips it if an earlier run did the same
        steps up to this one."""
        self.key = hashlib.sha256(f"{self.key}\n{what}".encode()).hexdigest()
        done = self.record[self.stages[-1].root.name]["done"]
        if len(done) > len(self.steps) and done[len(self.steps)] == self.key:
            self.steps.append(self.key)
            return "kept"
        del done[len(self.steps) :]
        change()
        self.steps.append(self.key)
        done.append(self.key)
        self.record_file.write_text(json.dumps(self.record))
        return ""

    def start(self, rest):
        """Carries out FROM BASE [AS NAME]."""
        words = Stage(self.folder, dict(self.defaults)).substitute(rest).split()
        if len(words) not in (1, 3) or words[1:2] not in ([], ["AS"]) or words[0] not in BASES:
            raise Failure(f"FROM {' '.join(words)}: expected {' or '.join(BASES)}, and maybe AS NAME")
        stage = Stage(self.folder / f"root-{len(self.stages)}", {})
        self.stages.append(stage)
        if len(words) == 3:
            self.names[words[2]] = len(self.stages) - 1
        self.steps = []
        entry = self.record.setdefault(stage.root.name, {"done": []})

        def fresh():
            make_root(stage.root, self.folder / "base", BASES[words[0]])
            entry["base"] = size_of(stage.root)

        return self.once(f"FROM {words[0]}", fresh)

    def argument(self, rest):
        """Carries out ARG NAME[=DEFAULT], before the first FROM or in a stage."""
        name, _, default = rest.strip().partition("=")
        value = self.given.get(name, self.defaults.get(name, default) if self.stages else default)
        (self.stages[-1].arguments if self.stages else self.defaults)[name] = value

    def copy(self, rest):
        """Carries out COPY [--from=STAGE] SOURCE… TARGET."""
        stage = self.stages[-1]
        words = stage.substitute(rest).split()
        flags = [w for w in words if w.startswith("--")]
        *sources, target = words[len(flags) :]
        if any(not f.startswith("--from=") for f in flags) or any(re.search(r"[*?\[]", s) for s in sources):
            raise Failure(f"COPY {rest}: only --from= and plain names are known here")
        into = target.endswith("/") or len(sources) > 1 or target == "."
        place = stage.path(target)
        if flags:
            name = flags[0].removeprefix("--from=")
            if name not in self.names:
                raise Failure(f"COPY {rest}: no stage has this name")
            other = self.stages[self.names[name]]
            state = self.record[other.root.name]["done"][-1]
            return self.once(f"COPY {rest} {state}", lambda: copy_trees(other, sources, place, into))
        chosen = self.chosen(sources, place, into)
        state = hashlib.sha256()
        for file, _ in chosen:
            state.update(f"{file} {os.lstat(self.context / file).st_mode} ".encode())
            state.update((self.context / file).read_bytes())
        return self.once(f"COPY {rest} {state.hexdigest()}", lambda: copy_files(self.context, chosen))

    def chosen(self, sources, place, into):
        """Returns the files of the context that a COPY copies, as pairs (file, destination)."""
        found = []
        for source in map(os.path.normpath, sources):
            if source in self.files:
                found.append((source, place / os.path.basename(source) if into else place))
                continue
            below = self.files if source == "." else [f for f in self.files if f.startswith(source + "/")]
            if not below:
                raise Failure(f"COPY {source}: no such file in the context")
            found += [(file, place / os.path.relpath(file, source)) for file in below]
        return found

    def run(self, rest):
        """Carries out RUN COMMAND."""
        if rest.startswith("--"):
            raise Failure(f"RUN {rest.split()[0]}: no flag of RUN is known here")
        stage = self.stages[-1]
        command = stage.inside(command_of(rest), stage.arguments, network=True)

        def change():
            done = subprocess.run(command, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise Failure(f"RUN {rest[:60]}… ended with {done.returncode}")

        return self.once(f"RUN {stage.user} {stage.directory} {stage.variables(stage.arguments)} {rest}", change)

    def directory(self, rest):
        """Carries out WORKDIR PATH."""
        stage = self.stages[-1]
        stage.directory = os.path.normpath(os.path.join(stage.directory, stage.substitute(rest).strip()))
        stage.path(".").mkdir(parents=True, exist_ok=True)

    def environment(self, rest):
        """Carries out ENV NAME=VALUE…."""
        stage = self.stages[-1]
        for word in shlex.split(stage.substitute(rest)):
            name, equals, value = word.partition("=")
            if not equals:
                raise Failure(f"ENV {rest}: expected NAME=VALUE")
            stage.environment[name] = value

    def user(self, rest):
        """Carries out USER ID:ID."""
        if not re.fullmatch(r"\d+:\d+", rest.strip()):
            raise Failure(f"USER {rest}: expected two numbers as in 10001:10001")
        self.stages[-1].user = rest.strip()

    def health(self, rest):
        """Carries out HEALTHCHECK [--OPTION=…] CMD COMMAND."""
        found = re.fullmatch(r"(?:--(?:interval|timeout|start-period|retries)=\S+\s+)*CMD\s+(.*)", rest)
        if not found:
            raise Failure(f"HEALTHCHECK {rest}: expected options and CMD")
        self.stages[-1].health = command_of(found[1])

    def entry(self, rest):
        self.stages[-1].entry = command_of(rest)

    def command(self, rest):
        self.stages[-1].command = command_of(rest)

    def expose(self, rest):
        if not re.fullmatch(r"\d+(/tcp|/udp)?", rest.strip()):
            raise Failure(f"EXPOSE {rest}: expected a port")


INSTRUCTIONS = {
    "FROM": Build.start,
    "ARG": Build.argument,
    "ENV": Build.environment,
    "WORKDIR": Build.directory,
    "COPY": Build.copy,
    "RUN": Build.run,
    "USER": Build.user,
    "ENTRYPOINT": Build.entry,
    "CMD": Build.command,
    "HEALTHCHECK": Build.health,
    "EXPOSE": Build.expose,
}


def copy_files(context, chosen):
    for file, place in chosen:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copy2(context / file, place, follow_symlinks=False)
        os.chown(place, 0, 0, follow_symlinks=False)


def copy_trees(stage, sources, place, into):
    for source in sources:
        found = stage.root / source.lstrip("/")
        if not found.exists():
            raise Failure(f"COPY {source}: no such file in {stage.root.name}")
        whole = found.is_dir()
        (place if whole or into else place.parent).mkdir(parents=True, exist_ok=True)
        copied = ["cp", "-a", "--no-preserve=ownership", f"{found}/." if whole else found, place]
        subprocess.run(copied, check=True)


def built(build, file):
    """Carries out all instructions and returns the last stage."""
    parts = stages(file)
    for name, _ in sum(parts, []):
        if name not in INSTRUCTIONS:
            raise Failure(f"{name}: this instruction is not known here, expected one of {' '.join(INSTRUCTIONS)}")
    for number, part in enumerate(parts):
        for place, (name, rest) in enumerate(part, 1):
            title = f"{number}.{place}/{len(part)} {name} {' '.join(rest.split())[:70]}"
            if name in ("FROM", "COPY", "RUN"):
                print(f"image: {title} …", flush=True)
            begun = time.monotonic()
            outcome = INSTRUCTIONS[name](build, rest)
            print(f"image: {title}  {outcome or f'{time.monotonic() - begun:.1f} s'}", flush=True)
    return build.stages[-1]


def check(stage, arguments, expected):
    """Runs the image with these arguments, or with its CMD if there are none, and checks exit code and stdout."""
    begun = time.monotonic()
    command = stage.inside([*stage.entry, *(arguments or stage.command)], {}, network=False)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    title = " ".join(arguments) or "(no arguments)"
    if done.returncode or not re.search(expected, done.stdout):
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
        raise Failure(f"{title} ended with {done.returncode}, expected 0 and {expected!r} on stdout")
    print(f"image: run {title}  {time.monotonic() - begun:.1f} s", flush=True)


def check_server(stage):
    """Checks that a listening server becomes healthy, and that it ends when it is stopped as by `docker stop`."""
    begun = time.monotonic()
    arguments = [*stage.entry, "serve", "--target", "/usr/local/share/specdec/demo/target"]
    output = stage.root.parent / "serve.log"
    with open(output, "w") as log:
        command = stage.inside(arguments, {}, network=False)
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def healthy(**variables):
        process = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0]
        asked = stage.beside(process, stage.health, variables)
        return process, subprocess.run(asked, capture_output=True).returncode == 0

    # The health check also passes while process 1 has not become the server yet, so the output must contain "listening
    # on", too.
    while "listening on" not in output.read_text() or not healthy()[1]:
        if server.poll() is not None or time.monotonic() > begun + 600:
            raise Failure(f"serve does not become healthy: {output.read_text()}")
        time.sleep(1)
    process, wrong = healthy(SPECDEC_SERVE_PORT="1")
    if wrong:
        raise Failure("serve: the health check says that a server is healthy which does not listen on its port")
    subprocess.run(["kill", "-TERM", process], check=True)
    if server.wait(600) != 0:
        raise Failure(f"serve ended with {server.returncode} after SIGTERM: {output.read_text()}")
    print(f"image: run serve, healthy, stopped  {time.monotonic() - begun:.1f} s", flush=True)


def check_image(stage):
    version = re.escape((SOURCE / "VERSION").read_text().strip())
    check(stage, [], "specdec")
    check(stage, ["--version"], version)
    check(stage, ["doctor"], r"ok +engine +/usr/local/libexec/specdec-engine")
    prompt = ["--prompt", "", "--max-tokens", "8"]
    check(stage, ["generate", "--target", "/usr/local/share/specdec/demo/target", *prompt], r"\S")
    check(stage, ["init", "files"], "")  # The user can write into the working directory.
    check_server(stage)


def build_and_check(given):
    folder = given.folder.resolve()
    try:
        values = dict(value.split("=", 1) for value in given.build_arg)
        build = Build(folder, given.context.resolve(), values, given.reuse)
        stage = built(build, given.dockerfile)
        whole, base = size_of(stage.root), build.record[stage.root.name]["base"]
        print(f"image: {(whole - base) / 1e6:.0f} MB on a base of {base / 1e6:.0f} MB", flush=True)
        check_image(stage)
    except (Failure, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        sys.exit(f"image: failed: {error}")
    print("image: ok")


@contextlib.contextmanager
def roots(folder, keep):
    """Yields the folder for the root file systems. Removes it at the end, however the run ends, unless `keep` is
    set."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield folder
    finally:
        for _ in range(3):  # a killed process may still be writing
            if not keep and folder.exists():
                shutil.rmtree(folder, ignore_errors=True)
                time.sleep(0.2)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dockerfile", type=Path, default=SOURCE / "Dockerfile")
    parser.add_argument("--context", type=Path, default=SOURCE, help="a git repository, whose tracked files are copied")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--folder", type=Path, help="gets the roots; a new one in the cache folder unless given")
    parser.add_argument("--keep", action="store_true", help="the roots stay")
    reuse = "goes on after the last step that is as in the run that kept the roots; what stands in them stays"
    parser.add_argument("--reuse", action="store_true", help=reuse)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    given = options()
    if given.inside:
        return build_and_check(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parent = given.folder or Path(os.environ.get("SPECDEC_CACHE") or Path(cache, "specdec"))
    parent.mkdir(parents=True, exist_ok=True)
    if given.folder and any(parent.iterdir()) and not (given.reuse and (parent / RECORD).exists()):
        sys.exit(f"image: {parent}: expected an empty folder, or with --reuse one that --keep left")
    if lack := missing(parent):
        print(f"image: skipped: {lack}")
        sys.exit(SKIP)
    with roots(
        given.folder or Path(tempfile.mkdtemp(prefix="image-", dir=parent)), given.keep or given.reuse
    ) as folder:
        # The kernel kills unshare when this process ends. With unshare, all processes of its namespace end.
        spaces = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
        ]
        again = [sys.executable, "-u", __file__, *sys.argv[1:], "--folder", str(folder), "--inside"]
        code = subprocess.call([*spaces, *again])
    sys.exit(code)


main()
