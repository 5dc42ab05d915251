"""Tests `org/name` as MODEL against a fake hub on 127.0.0.1. Covers which files are downloaded and kept, which servers
receive the token, failures of the hub, and a cache that is shared with the real huggingface_hub."""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from fake_hub import FakeHub, Repository, commit_name, git_blob_id  # noqa: E402
from faults import ENOSPC, Subject, attempt, must, under_faults  # noqa: E402
from specdec_run import SKIP, SPECDEC, expect, run, run_json  # noqa: E402
from tiny_model import write_tiny_model  # noqa: E402

try:
    import huggingface_hub  # noqa: F401
except ImportError:
    print(
        "SKIPPED: the Python package huggingface_hub is not there (cmake/setup.sh installs it; "
        "SPECDEC_PYTHON names the interpreter)"
    )
    sys.exit(SKIP)

for name in [
    n
    for n in os.environ
    if n.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))
    or n.lower().endswith("_proxy")
    or n.endswith(("_CA_BUNDLE", "SSL_CERT_FILE"))
]:
    del os.environ[name]
scratch = Path(tempfile.mkdtemp(prefix="specdec-hub-"))
hub = FakeHub()
os.environ |= {"HF_ENDPOINT": hub.hub, "HOME": str(scratch)}

write_tiny_model(scratch / "tiny", 1, 7)
TINY = {f.name: f.read_bytes() for f in (scratch / "tiny").iterdir()}
# Files of a repository that are not part of the model. They must not be downloaded.
REST = {
    "README.md": b"# tiny",
    "pytorch_model.bin": b"\x80\x02" * 2000,
    "modeling.py": b"import os",
    "onnx/model.onnx": b"onnx",
    "consolidated.safetensors": b"c" * 3000,
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00001.safetensors"}}',
    "model-00001-of-00001.safetensors": b"s" * 3000,
}
SHARDS = {"model-1.safetensors": b"one" * 1000, "model-2.safetensors": b"two" * 1000}
SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    **SHARDS,
    "other.safetensors": b"other" * 1000,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode(),
}
BIG = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 12288,
}  # 3 MiB, which is more than one block of the writer
C1, C2, C3 = commit_name("1"), commit_name("2"), commit_name("3")
hub.repositories = {
    "org/tiny": Repository(
        {C1: TINY | REST, C2: TINY | REST | {"config.json": TINY["config.json"] + b"\n"}, C3: TINY},
        {"main": C1, "v1.0": C1, "refs/pr/1": C3},
    ),
    "org/sharded": Repository({C1: SHARDED}, {"main": C1}),
    "org/big": Repository({C1: BIG}, {"main": C1}),
    "org/gated": Repository({C1: TINY}, {"main": C1}, gated=True),
    "org/private": Repository({C1: TINY}, {"main": C1}, private=True),
    "org/pickle": Repository({C1: {"config.json": b"{}", "pytorch_model.bin": b"\x80"}}, {"main": C1}),
    "org/lost": Repository({C1: {k: v for k, v in SHARDED.items() if k != "model-2.safetensors"}}, {"main": C1}),
    "org/escape": Repository(
        {C1: SHARDED | {"model.safetensors.index.json": b'{"weight_map": {"a": "../../model-1.safetensors"}}'}},
        {"main": C1},
    ),
}
count = 0


def fresh():
    """Returns a new, empty cache and makes the hub forget its requests and faults."""
    global count
    count += 1
    hub.clear()
    home = scratch / f"home{count}"
    os.environ["HF_HOME"] = str(home)
    return home / "hub"


def fetch(model, **options):
    _, result = run_json("fetch", model, **options)
    return result["models"][0]


def check_blobs(cache):
    """Checks that the name of every complete blob is the digest of its bytes."""
    for blob in cache.glob("models--*/blobs/*"):
        if not blob.name.endswith(".incomplete"):
            data = blob.read_bytes()
            if blob.name not in (hashlib.sha256(data).hexdigest(), git_blob_id(data)):
                expect(False, f"{blob} has the bytes of its name")


def contents(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in Path(directory).rglob("*") if p.is_file()}


def check_layout():
    cache = fresh()
    got = fetch("org/tiny")
    repository = cache / "models--org--tiny"
    snapshot = repository / "snapshots" / C1
    expect(got == {"model": "org/tiny", "directory": str(snapshot), "commit": C1}, "fetch prints directory and commit")
    expect(contents(snapshot) == TINY, "the snapshot has the model's files and nothing else")
    expect(
        not any(
            n in path
            for path in hub.seen()
            for n in ("bin", "modeling", "README", "onnx", "consolidated", "index", "00001")
        ),
        "nothing else was even asked for",
    )
    expect((repository / "refs/main").read_text() == C1, "the ref holds the commit")
    etags = {n: hashlib.sha256(d).hexdigest() if len(d) >= 2000 else git_blob_id(d) for n, d in TINY.items()}
    expect(
        {p.name: os.readlink(p) for p in snapshot.iterdir()} == {n: f"../../blobs/{e}" for n, e in etags.items()},
        "snapshots are relative links to blobs named by ETag",
    )
    expect(
        (repository / ".no_exist" / C1 / "vocab.json").is_file()
        and not (repository / ".no_exist" / C1 / "config.json").exists(),
        "what is not there is remembered",
    )
    hub.clear()
    fetch("org/tiny")
    expect(len(hub.requests) == 1, "a branch that is cached costs one question")
    for pinned in (f"org/tiny@{C1}", f"org/tiny@{C1[:9]}", f"hf://org/tiny@{C1}"):
        hub.clear()
        expect(fetch(pinned)["directory"] == str(snapshot) and not hub.requests, "a commit that is cached costs none")
    for switch in ({"HF_HUB_OFFLINE": "yes"}, {"TRANSFORMERS_OFFLINE": "1"}):
        expect(fetch("org/tiny", env=switch)["commit"] == C1 and not hub.requests, "offline: none")
    run(
        "fetch",
        "org/sharded",
        env={"HF_HUB_OFFLINE": "1"},
        code=7,
        last_line=["HF_HUB_OFFLINE", "org/sharded", "specdec fetch"],
    )
    expect(not hub.requests, "offline without a cache: an error and no request")
    hub.repositories["org/tiny"].refs["main"] = C2
    expect(
        fetch("org/tiny")["commit"] == C2
        and fetch("org/tiny@v1.0")["commit"] == C1
        and fetch("org/tiny@refs/pr/1")["commit"] == C3,
        "a moved branch, a tag, a pull request",
    )
    expect(
        (repository / "refs/refs/pr/1").read_text() == C3 and hub.seen("cdn") == [],
        "blobs that are there are not downloaded again",
    )
    hub.repositories["org/tiny"].refs["main"] = C1
    cache = fresh()
    expect(fetch("org/old-name")["commit"] == C1, "a renamed repository is followed")
    _, out, err = run("fetch", "org/sharded")
    expect(set(contents(out.strip())) == set(SHARDED) - {"other.safetensors"}, "of shards those that the index names")
    cache = fresh()
    other = scratch / "elsewhere"
    fetch("org/tiny", env={"HF_HUB_CACHE": str(other)})
    expect((other / "models--org--tiny/refs/main").exists() and not cache.exists(), "HF_HUB_CACHE is the cache")
    # An incomplete snapshot is completed from the cached blobs, without another download.
    cache = fresh()
    fetch("org/tiny")
    (cache / "models--org--tiny/snapshots" / C1 / "model.safetensors").unlink()
    hub.clear()
    fetch(f"org/tiny@{C1}")
    expect(
        contents(cache / "models--org--tiny/snapshots" / C1) == TINY and hub.seen("cdn") == [],
        "an incomplete snapshot of a commit is completed from its blobs",
    )
    next(cache.glob("models--org--tiny/blobs/" + etags["model.safetensors"])).write_bytes(b"torn")
    (cache / "models--org--tiny/snapshots" / C1 / "model.safetensors").unlink()
    fetch("org/tiny")
    expect(contents(cache / "models--org--tiny/snapshots" / C1) == TINY, "a blob of the wrong size is replaced")


def check_token():
    cache = fresh()
    token = {"HF_TOKEN": hub.token}
    run("fetch", "org/gated", code=2, last_line=["org/gated", "gated", "licence", f"{hub.hub}/org/gated", "HF_TOKEN"])
    run("fetch", "org/private", code=7, last_line=["org/private", "no such model", "HF_TOKEN"])
    run("fetch", "org/gated", code=2, env={"HF_TOKEN": "hf_wrong"}, last_line=["licence", "HF_TOKEN"])
    outputs = "".join(
        run("-v", "--json", "fetch", m, env=token)[i] for m in ("org/gated", "org/private") for i in (1, 2)
    )
    expect(hub.token not in outputs, "the token is in no output")
    expect(
        f"Bearer {hub.token}" in hub.tokens("hub") and hub.tokens("cdn") and not any(hub.tokens("cdn")),
        "the token goes to the hub and to no other host",
    )
    for source in ("path", "home"):
        cache = fresh()
        file = cache.parent / "token" if source == "home" else scratch / "my-token"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(hub.token + "\n")
        env = {} if source == "home" else {"HF_TOKEN_PATH": str(file)}
        expect(fetch("org/private", env=env)["commit"] == C1, f"the token of a file ({source})")
        hub.clear()
        run("fetch", "org/private@main2", env=env | {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, code=7)
        expect(hub.tokens("hub") == [None], "HF_HUB_DISABLE_IMPLICIT_TOKEN: no token is sent")
        _, out, err = run("doctor", env=env, code=(0, 3))
        expect(str(file) in out and hub.token not in out + err, "doctor names the token's source, not the token")
    fresh()
    run("fetch", "org/tiny", env={"HF_TOKEN": "two words"}, code=2, last_line=["HF_TOKEN"])
    _, _, err = run(
        "fetch",
        "org/tiny",
        env={"HF_ENDPOINT": f"http://u:{hub.token}@127.0.0.1:1"},
        code=2,
        last_line=["HF_ENDPOINT", "HF_TOKEN"],
    )
    expect(hub.token not in err, "a secret in the URL is refused without being repeated")

    def dumps_core(env):
        fresh()
        hub.stall = [30]
        unlimited = lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        child = subprocess.Popen(
            [SPECDEC, "-q", "fetch", "org/big"], env=os.environ | env, cwd=scratch, preexec_fn=unlimited
        )
        while not hub.seen("cdn"):
            time.sleep(0.05)
        child.send_signal(signal.SIGABRT)
        hub.stop.set()
        return os.WCOREDUMP(os.waitpid(child.pid, 0)[1])

    if dumps_core({}):
        expect(not dumps_core(token), "a process that has read a token leaves no core file")
    else:
        print("not tested: no core files here, whatever a process has read")


def check_tls():
    """A mirror with its own certificate must get the token; its redirect to a URL without TLS must be refused."""
    openssl = shutil.which("openssl")
    if not openssl:
        return print("not tested: no openssl to make a certificate with")
    made = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(
        [openssl, *made, "-keyout", scratch / "key.pem", "-out", scratch / "cert.pem"], check=True, capture_output=True
    )
    mirror = hub.listen("hub", certificate=(scratch / "cert.pem", scratch / "key.pem"))
    fresh()
    env = {"HF_ENDPOINT": mirror, "SSL_CERT_FILE": str(scratch / "cert.pem"), "HF_TOKEN": hub.token}
    run("fetch", "org/tiny", env={"HF_ENDPOINT": mirror}, code=75, last_line=["127.0.0.1", "cert"])
    expect(not hub.requests, "a certificate that nobody vouches for ends it before a request")
    run("fetch", "org/tiny", env=env, code=75, last_line=["redirected to another protocol (http)", "refused"])
    expect(
        set(hub.tokens("hub")) == {f"Bearer {hub.token}"} and not hub.seen("cdn"),
        "SSL_CERT_FILE: the mirror gets the token; from https to http nothing follows",
    )
    return None


def check_failures():
    def fails(model, code, *texts, **faults):
        cache = fresh()
        for k, v in faults.pop("hub", {}).items():
            setattr(hub, k, v)
        run("fetch", model, code=code, last_line=texts, **faults)
        check_blobs(cache)
        expect(
            not list(cache.glob("models--*/snapshots/*/config.json")),
            f"{model}: exit {code}, {', '.join(texts)}: nothing that looks complete is left",
        )

    fails("org/none", 7, "org/none", "no local directory", "no such model")
    fails("org/tiny@v9", 7, "no revision 'v9'")
    fails("org/pickle", 7, "pickle")
    fails("org/lost", 7, "index.json names model-2.safetensors")
    fails("org/escape", 7, "weight_map")
    fails("org/tiny", 7, "api/models", hub={"info": b"<html>"})
    fails("org/tiny", 7, "sha", hub={"info": json.dumps({"sha": "../../etc", "siblings": []}).encode()})
    fails("org/tiny", 7, "siblings", hub={"info": json.dumps({"sha": C1, "siblings": 7}).encode()})
    for name in (
        "../../evil.safetensors",
        "/etc/evil.json",
        "a/../../evil",
        "config.json\0x",
        "x" * 5000,
        "",
        "a\\..\\b",
        "./config.json",
    ):
        fails("org/tiny", 7, "name that leads elsewhere", hub={"extra_names": [name]})
    fails("org/big", 7, "SHA-256", "nothing was kept", hub={"corrupt": 1})
    fails("org/big", 7, "more or other bytes", hub={"extra": 100})
    fails("org/big", 7, "ETag", hub={"etag": "not-a-digest"})
    fails("org/big", 7, "ETag", hub={"etag": "../../../evil"})
    fails("org/big", 74, "to download", "HF_HUB_CACHE", hub={"size": 10**17})
    fails("org/big", 75, "another protocol", hub={"cdn_location": "file:///etc/passwd"})
    fails(
        "org/big",
        75,
        "redirected more than 5 times",
        hub={"cdn_location": f"{hub.hub}/org/big/resolve/{C1}/model.safetensors"},
    )
    fails("org/tiny", 75, "HTTP 503", "5 attempts", hub={"status": [(503, {})] * 5})
    fails("org/tiny", 75, "127.0.0.1", env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    fails("org/tiny", 2, "HF_HUB_ETAG_TIMEOUT", env={"HF_HUB_ETAG_TIMEOUT": "soon"})
    fails("models/typo", 7, "no such directory", "hf://models/typo")
    silent = socket.create_server(("127.0.0.1", 0))  # accepts connections and never answers
    fails(
        "org/tiny",
        75,
        "5 attempts",
        env={"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_ETAG_TIMEOUT": "0.2"},
        timeout=60,
    )
    fresh()
    _, _, err = run("fetch", "org/tiny", code=75, env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    expect("asking the hub" in err, f"a hub that does not answer is named while it is asked: {err}")
    fresh()
    hub.status = [(429, {"Retry-After": "1"}), (502, {})]
    expect(fetch("org/tiny")["commit"] == C1, "429 and 502 are tried again")
    hub.status = [(503, {})] * 5
    _, _, err = run("fetch", "org/tiny", last_line=["HTTP 503", "using org/tiny", C1[:12]])
    expect(len(err.strip().splitlines()) == 1, "a hub that is down: the cached commit and one warning")
    run("fetch", "org/tiny", env={"HF_ENDPOINT": "http://127.0.0.1:1"}, last_line=["using org/tiny"])


def check_downloads():
    cache = fresh()
    hub.cut = [2_000_000, 500_000, 0]
    fetch("org/big")
    ranges = [h.get("range") for p, _, _, h in hub.requests if p == "cdn"]
    expect(
        ranges == [None, "bytes=2000000-", "bytes=2500000-", "bytes=2500000-"],
        "a broken download goes on where it broke off",
    )
    check_blobs(cache)
    cache = fresh()
    hub.cut, hub.ignore_range = [2_000_000], True
    expect(contents(fetch("org/big")["directory"]) == BIG, "a server that cannot continue starts over")
    fresh()
    hub.cut, hub.ignore_range = [2_000_000] * 30, True
    run("fetch", "org/big", code=75, last_line=["5 attempts"])
    expect(len(hub.cut) == 25, "a server that never gets further is given up")
    cache = fresh()
    hub.stall = [600]
    expect(
        contents(fetch("org/big", env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"}, timeout=60)["directory"]) == BIG,
        "a download that stands still is broken off and continued",
    )
    hub.stop.set()
    # After a kill in the middle of a download the next run continues.
    cache = fresh()
    hub.stall = [30]
    child = subprocess.Popen([SPECDEC, "-q", "fetch", "org/big"])
    while not any(f.stat().st_size for f in cache.glob("models--*/blobs/*.incomplete")) or not hub.seen("cdn"):
        time.sleep(0.05)
    child.kill()
    child.wait()
    left = next(cache.glob("models--*/blobs/*.incomplete")).stat().st_size
    hub.stop.set()
    hub.clear()
    expect(contents(fetch("org/big")["directory"]) == BIG, "a killed download is completed")
    expect([h.get("range") for p, _, _, h in hub.requests if p == "cdn"] == [f"bytes={left}-"], f"from byte {left} on")
    # A partial file with wrong bytes, left by an earlier download, must not cause a failure.
    etag = hashlib.sha256(BIG["model.safetensors"]).hexdigest()
    cache = fresh()
    blobs = cache / "models--org--big/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag}.0badc0de.incomplete").write_bytes(b"bad" * 100)
    expect(
        contents(fetch("org/big")["directory"]) == BIG
        and [f.name for f in blobs.iterdir() if "incomplete" in f.name] == [],
        "a damaged left-over is started over and not kept",
    )
    # A stop request ends the download in an orderly way.
    cache = fresh()
    hub.stall = [30]
    child = subprocess.Popen([SPECDEC, "-q", "fetch", "org/big"], stderr=subprocess.PIPE)
    while not hub.seen("cdn"):
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    expect("stopped by a signal" in child.communicate()[1].decode() and child.returncode == 75, "SIGTERM: exit 75")
    hub.stop.set()


class Fetched(Subject):
    """`specdec fetch` under faults: a blob never has wrong bytes, and config.json is written last."""

    name = "fetch"

    def environment(self, folder):
        return {"HF_HOME": str(folder / "home")}

    def prepare(self, folder):
        (folder / "home").mkdir()

    def command(self, folder):
        return ["-q", "fetch", "org/sharded"]

    def check(self, folder, text):
        check_blobs(folder / "home/hub")
        snapshot = self.snapshot(folder)
        must(
            not (snapshot / "config.json").exists() or contents(snapshot).keys() == self.wanted,
            f"{text}: a snapshot with config.json is whole: {contents(snapshot).keys()}",
        )

    def done(self, folder, text):
        must(contents(self.snapshot(folder)).keys() == self.wanted, f"{text}: done, and not there")

    def finish(self, folder, text):
        _, result = run_json("fetch", "org/sharded", env=self.environment(folder))
        must(contents(result["models"][0]["directory"]).keys() == self.wanted, f"{text}: the next run completes it")

    wanted = SHARDED.keys() - {"other.safetensors"}

    def snapshot(self, folder):
        return folder / "home/hub/models--org--sharded/snapshots" / C1


def check_kills_and_races():
    fresh()
    work = scratch / "faults"
    work.mkdir()
    under_faults(Fetched(), work)
    cache = fresh()
    hub.pause = 0.3  # long enough that the others start while the first one downloads
    children = [subprocess.Popen([SPECDEC, "-q", "fetch", "org/big"], stdout=subprocess.PIPE) for _ in range(4)]
    expect(
        [c.wait() for c in children] == [0] * 4 and contents(children[0].communicate()[0].decode().strip()) == BIG,
        "four processes at once",
    )
    expect(len(hub.seen("cdn")) == 1, "download it once")
    check_blobs(cache)
    cache = fresh()
    code, lines = attempt(["-q", "fetch", "org/big"], ENOSPC, 12)
    expect(code == 74 and "free some space" in lines[-1], f"a full disk: exit 74 {code, lines}")
    check_blobs(cache)


def check_exchange():
    """Shares the cache with the real huggingface_hub, which runs in a new process each time, so that it reads its
    settings from the environment anew."""

    def python(code, **env):
        done = subprocess.run(
            [sys.executable, "-c", "import sys, huggingface_hub as h\n" + code],
            env=os.environ | env | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            capture_output=True,
            text=True,
        )
        expect(done.returncode == 0, f"huggingface_hub: {code}{done.stderr[-2000:] if done.returncode else ''}")
        return done.stdout.strip()

    cache = fresh()
    directory = python(
        "print(h.snapshot_download('org/tiny', allow_patterns=['*.json', 'model.safetensors'], "
        "ignore_patterns=['*.index.json']))"
    )
    before = {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file() and "blobs" in p.parts}
    hub.clear()
    expect(
        fetch("org/tiny", env={"HF_HUB_OFFLINE": "1"})["directory"] == directory and not hub.requests,
        "a cache of huggingface_hub is read without one request",
    )
    expect(
        fetch(f"org/tiny@{C1}")["directory"] == directory and not hub.requests,
        "complete, so nothing is asked for its commit either",
    )
    fetch("org/tiny")
    expect(hub.seen("cdn") == [] and before == {p: p.stat().st_mtime_ns for p in before}, "online it is left as it is")

    cache = fresh()
    mine = fetch("org/tiny")["directory"]
    before = {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file() and "blobs" in p.parts}
    hub.clear()
    expect(
        python("print(h.snapshot_download('org/tiny', local_files_only=True))", HF_HUB_OFFLINE="1") == mine
        and not hub.requests,
        "snapshot_download takes specdec's cache offline",
    )
    expect(
        python("print(h.hf_hub_download('org/tiny', 'config.json'))", HF_HUB_OFFLINE="1") == mine + "/config.json",
        "hf_hub_download, too",
    )
    expect(
        python("print(h.try_to_load_from_cache('org/tiny', 'vocab.json') is h._CACHED_NO_EXIST)") == "True",
        "and what is known to be absent",
    )
    names = sorted(TINY)
    expect(
        python(f"print(h.snapshot_download('org/tiny', allow_patterns={names!r}))") == mine,
        "online it finds the same snapshot",
    )
    expect(
        hub.seen("cdn") == []
        and before == {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file() and "blobs" in p.parts},
        "and downloads nothing again",
    )
    info = json.loads(
        python(
            "import json; r = [r for r in h.scan_cache_dir().repos][0]; print(json.dumps([r.repo_id, "
            "r.nb_files, len(h.scan_cache_dir().warnings)]))"
        )
    )
    expect(info == ["org/tiny", len(TINY), 0], "hf cache scan has no complaint")
    # huggingface_hub downloads one file of the model, and specdec all other files.
    cache = fresh()
    python("h.hf_hub_download('org/tiny', 'config.json')")
    expect(contents(fetch("org/tiny")["directory"]) == TINY, "specdec completes what huggingface_hub began")


def check_commands():
    cache = fresh()
    _, result = run_json("generate", "--target", "org/tiny", "--prompt", "one", "--max-tokens", 4, "--device", "cpu")
    expect(
        len(result["token_ids"]) == 4 and contents(cache / "models--org--tiny/snapshots" / C1) == TINY,
        "generate downloads its target; stdout is one object",
    )
    expect(sum("revision/main" in path for path in hub.seen()) == 1, "and asks for the commit once")
    (scratch / "log.jsonl").write_text(
        "".join(
            json.dumps(
                {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"answer {i}"}]}
            )
            + "\n"
            for i in range(40)
        )
    )
    run("data", "ingest", scratch / "log.jsonl", "--target", "org/tiny", "--out", scratch / "traffic")
    expect((scratch / "traffic/index.json").exists(), "data ingest takes a hub name")
    (scratch / "LOOP.toml").write_text(
        '[loop]\ntarget = "org/tiny"\nlogs = ["log.jsonl"]\nwork = "loop"\nstore = "store"\ndraft = "prune:1"\n'
    )
    hub.clear()
    # Two held-out conversations are too few for a verdict, so the loop ends before training.
    run("loop", "run", scratch / "LOOP.toml", code=4)
    expect(
        len(list(scratch.glob("loop/runs/*/data/index.json"))) == 1 and len(hub.requests) == 1,
        "a loop asks for its target once, not in every stage",
    )
    server = subprocess.Popen(
        [SPECDEC, "serve", "--target", "org/tiny", "--port", "0", "--device", "cpu"], stderr=subprocess.PIPE, text=True
    )
    url = next((found[1] for line in server.stderr if (found := re.search(r"listening on (http://\S+)", line))), None)
    deadline = time.monotonic() + 120
    names = None
    while url and names is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url + "/v1/models") as reply:
                names = [m["id"] for m in json.load(reply)["data"]]
        except urllib.error.HTTPError:  # the server is still loading
            time.sleep(0.1)
    server.terminate()
    server.communicate()
    expect(names == ["tiny"], "serve names the model after its repository, not after the commit")
    _, out, _ = run("doctor", code=(0, 3))
    expect(hub.hub in out and "1 models" in out and "no token" in out, "doctor shows hub and cache")


for check in (
    check_layout,
    check_token,
    check_tls,
    check_failures,
    check_downloads,
    check_kills_and_races,
    check_exchange,
    check_commands,
):
    if (
        not sys.argv[2:] or check.__name__.removeprefix("check_") in sys.argv[2:]
    ):  # usage: python3 hub_test.py BUILD_DIR [token …]
        check()
shutil.rmtree(scratch)
