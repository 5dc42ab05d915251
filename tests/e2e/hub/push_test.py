"""Pushes packages to a fake hub and pulls them back. Covers one commit per package, channels as branches, broken
transfers, access of private packages, false answers of the hub, and exchange with the real huggingface_hub."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from fake_hub import FakeHub, Repository, commit_name  # noqa: E402
from specdec_run import SOURCE, SPECDEC, expect, run, run_json  # noqa: E402

for name in [
    n
    for n in os.environ
    if n.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))
    or n.lower().endswith("_proxy")
    or n.endswith(("_CA_BUNDLE", "SSL_CERT_FILE"))
]:
    del os.environ[name]
scratch = Path(tempfile.mkdtemp(prefix="specdec-push-"))
hub = FakeHub()
os.environ |= {"HF_ENDPOINT": hub.hub, "HOME": str(scratch), "HF_HOME": str(scratch / "home"), "HF_TOKEN": hub.token}
sha256 = lambda data: hashlib.sha256(data).hexdigest()
outputs = []


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(seed):
    parts = {n: sha256(f"{n} {seed}".encode()) for n in ("config", "tokenizer", "header", "weights")}
    return parts | {"id": sha256(canonical(parts).encode())}


def make_package(store, seed, visibility=None, more=None):
    """Writes a package as `specdec package` does, but with made-up contents. Returns its digest."""
    target, draft = fingerprint("target"), fingerprint(f"draft {seed}")
    rollout = {
        "k": 3,
        "verify": "token",
        "alpha": 0.7,
        "ci": [0.6, 0.8],
        "conversations": 4,
        "steps": 0,
        "plain_steps": 0,
        "drafted": 0,
        "accepted_total": 0,
        "emitted": 0,
        "drafted_at": [],
        "reached": [],
        "accepted": [],
        "overlap": [],
    }
    report = {
        "schema": "specdec.validate/1",
        "verdict": "fail",
        "reason": "",
        "started": "2026-11-21T12:00:00Z",
        "seconds": 1,
        "tool_version": "0.1.0",
        "segments": [],
        "inputs": {
            "target": {"path": "t", "fingerprint": target},
            "draft": {"path": "d", "fingerprint": draft},
            "data": {"path": "x", "digest": ""},
            "contexts": "data",
            "split": "holdout",
            "device": "cpu",
            "dtype": "fp32",
            "temperature": 1,
            "floor": 0.6,
            "goal": 0.7,
        },
        "acceptance": {
            "alpha": 0.5,
            "ci": [0.4, 0.6],
            "requests": 4,
            "alpha_tokens": 0.5,
            "greedy_agreement": 0.5,
            "entropy": 1,
            "tokens": 9,
            "rollout": rollout,
            "request_alphas": [],
            "request_ids": [],
        },
    }
    weights = lambda text, blocks: b"".join(hashlib.sha256(f"{text} {i}".encode()).digest() for i in range(blocks))
    files = {
        "target/config.json": b"{}",
        "target/tokenizer.json": weights("tokenizer", 80),
        "target/model.safetensors": weights("target", 40000),
        "target/empty.txt": b"",
        "draft/config.json": f'{{"seed": {seed}}}'.encode(),
        "draft/model-a b#%?é.safetensors": weights(f"draft {seed}", 3000),
        "engines/vllm.sh": b"#!/bin/sh\n",
    } | (more or {})
    manifest = {
        "schema": "specdec.package/1",
        "files": [{"path": n, "size": len(d), "sha256": sha256(d)} for n, d in sorted(files.items())],
        "target": {"fingerprint": target, "reference": ""},
        "draft": {"fingerprint": draft, "kind": "prune:1"},
        "tokenizer_digest": target["tokenizer"],
        "report": report,
        "allowed_failed": True,
        "provenance": {},
        "parent": "",
        "created": f"2026-11-21T12:00:0{seed}Z",
        "tool_version": "0.1.0",
    }
    text = (canonical(manifest | ({"visibility": visibility} if visibility else {})) + "\n").encode()
    package = store / "packages" / f"sha256-{sha256(text)}"
    for name, data in (files | {"manifest.json": text}).items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(data)
    (store / "refs").mkdir(exist_ok=True)
    return sha256(text)


def contents(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in Path(directory).rglob("*") if p.is_file()}


STORE = scratch / "store"
ONE, TWO, OPEN = make_package(STORE, 1), make_package(STORE, 2), make_package(STORE, 3, "public")
FILES = {digest: contents(STORE / f"packages/sha256-{digest}") for digest in (ONE, TWO, OPEN)}
count = 0


def fresh():
    """Returns the name of a repository that does not exist yet. Makes the hub forget its requests, its faults and all
    uploads."""
    global count
    count += 1
    hub.clear()
    hub.lfs.clear()
    return f"org/draft-{count}"


def push(name, digest, *flags, **options):
    code, out, err = run(
        "--json", "package", "push", f"{STORE}:sha256-{digest}", "--store", f"hf://{name}", *flags, **options
    )
    outputs.append(out + err)
    return json.loads(out) if code == 0 else None


def pull(name, **options):
    global count
    count += 1
    store = scratch / f"pulled{count}"
    code, out, err = run("--json", "package", "pull", f"hf://{name}", "--store", store, **options)
    outputs.append(out + err)
    return (
        (json.loads(out), contents(store / "packages" / f"sha256-{json.loads(out)['digest']}"))
        if code == 0
        else (None, store)
    )


def head(name, branch="main"):
    repository = hub.repositories[name]
    return {n: d for n, d in repository.commits[repository.refs[branch]].items() if n != ".gitattributes"}


def writes(kind):
    return [
        path
        for _, method, path, _ in hub.requests
        if method == "POST" and re.fullmatch(hub.WRITES[kind], path.partition("?")[0])
    ]


def puts():
    return hub.seen("store", "PUT")


def check_there_and_back():
    name = fresh()
    pushed = push(name, ONE, "--why", "gate passed")
    repository = hub.repositories[name]
    expect(repository.private and head(name) == FILES[ONE], "a new repository is private, and its root is the package")
    expect(
        len(repository.log) == 1 and repository.tags == {f"sha256-{ONE}": repository.refs["main"]},
        "in one commit, with a tag of the digest",
    )
    expect(
        repository.log[0][3]["description"] == "gate passed"
        and "main" in repository.log[0][3]["summary"]
        and ONE[:12] in repository.log[0][3]["summary"],
        "whose message says why",
    )
    expect(
        pushed["is_new"]
        and pushed["commit"] == repository.refs["main"]
        and pushed["channel"] == {"name": "main", "from": "", "to": ONE, "changed": True},
        "the result says so",
    )
    expect(len(puts()) == 4 and not any(hub.tokens("store")), "large files went to the store, which saw no token")
    got, files = pull(name)
    expect(got["digest"] == ONE and files == FILES[ONE], "pull brings the same bytes")
    for digest_or_channel in (f"{name}:main", f"{name}:sha256-{ONE}"):
        expect(pull(digest_or_channel)[1] == FILES[ONE], f"{digest_or_channel}, too")
    hub.clear()
    again = push(name, ONE)
    expect(
        not again["is_new"]
        and not again["channel"]["changed"]
        and len(repository.log) == 1
        and not [m for _, m, _, _ in hub.requests if m != "GET"],
        "the same again writes nothing",
    )

    hub.clear()
    repository.commits[repository.refs["main"]] |= {"README.md": b"the page", "old.bin": b"x"}
    pushed = push(name, TWO)
    expect(
        head(name) == FILES[TWO] | {"README.md": b"the page"} and pushed["channel"]["from"] == ONE,
        "the next package replaces it; the repository's page stays",
    )
    expect(len(puts()) == 2, "what the hub has is not sent again: draft and manifest are")
    hub.clear()
    back = push(name, ONE, "--why", "rolled back")
    expect(
        head(name) == FILES[ONE] | {"README.md": b"the page"}
        and back["channel"]["from"] == TWO
        and not back["is_new"]
        and not puts(),
        "rolled back by pushing the older one: nothing is sent",
    )
    expect(pull(f"{name}:sha256-{TWO}")[1] == FILES[TWO] and len(repository.tags) == 2, "both stay under their digests")

    name = fresh()
    push(name, ONE, "--channel", "production")
    repository = hub.repositories[name]
    expect(
        set(repository.refs) == {"main", "production"} and head(name, "production") == FILES[ONE] and head(name) == {},
        "a channel is a branch; main is left alone",
    )
    hub.clear()
    push(name, ONE, "--channel", "canary")
    expect(
        repository.refs["canary"] == repository.refs["production"] and not writes("commit"),
        "another name for it is no commit",
    )
    push(name, TWO, "--channel", "canary")
    expect(
        head(name, "canary") == FILES[TWO]
        and head(name, "production") == FILES[ONE]
        and set(repository.refs) == {"main", "production", "canary"},
        "channels roll on their own",
    )
    expect(
        pull(f"{name}:production")[1] == FILES[ONE] and pull(f"{name}:canary")[1] == FILES[TWO],
        "and are pulled by name",
    )
    pull(name, code=7, last_line=["not a package", name])
    pull(f"{name}:nightly", code=7, last_line=["no channel 'nightly'"])
    pull(f"{name}:sha256-{'0' * 64}", code=7, last_line=["no package sha256-000"])
    pull(f"{name}:sha256-{ONE[:12]}", code=2, last_line=["all 64 digits"])
    pull("org/none", code=7, last_line=["no such repository", "org/none"])
    for bad in ("a..b", "x.lock", "-x", "HEAD", "f" * 40):
        push(name, ONE, f"--channel={bad}", code=2, last_line=["channel"])
    for bad in ("org/name@main", "org/name:main", "name", "org/../x"):
        push(bad, ONE, code=2, last_line=["expected hf://org/name"])
    run("package", "pull", f"hf://{name}:canary", "--store", "s3://bucket", code=2, last_line=["directory first"])
    run("package", "push", f"{STORE}:sha256-{ONE}", "--store", "ftp://x/y", code=2, last_line=["expected a directory"])
    run(
        "package", "push", f"{STORE}:sha256-{ONE}", "--store", scratch / "x", "--public", code=2, last_line=["--public"]
    )
    push(name, ONE, code=2, env={"HF_HUB_OFFLINE": "1"}, last_line=["HF_HUB_OFFLINE"])
    pull(name, code=2, env={"HF_HUB_OFFLINE": "1"}, last_line=["HF_HUB_OFFLINE"])


def check_signatures():
    name, keys = fresh(), SOURCE / "tests/base/minisign"
    digest = make_package(STORE, 4)
    push(name, digest)
    run("package", "sign", f"{STORE}:sha256-{digest}", "--key", keys / "plain.key")
    signed = contents(STORE / f"packages/sha256-{digest}")
    push(name, digest)
    repository = hub.repositories[name]
    expect(
        head(name) == signed and repository.tags == {f"sha256-{digest}": repository.refs["main"]},
        "a signature made later follows, and the tag with it",
    )
    far = scratch / "far"
    far.mkdir()
    shutil.copy(keys / "plain.pub", far / "trusted.pub")
    _, got = run_json("package", "pull", f"hf://{name}", "--store", far)
    expect(len(got["signer"]) == 16 and contents(got["path"]) == signed, "a store that demands signatures takes it")
    (STORE / f"packages/sha256-{digest}/manifest.json.minisig").unlink()
    hub.clear()
    push(name, digest)
    expect(head(name) == signed and not writes("commit"), "a copy without the signature does not take it away")
    push(name, ONE)
    run("package", "pull", f"hf://{name}", "--store", far, code=7, last_line=["not signed", "demands it"])


def check_visibility():
    name = fresh()
    first = commit_name("open")
    hub.repositories[name] = Repository({first: {".gitattributes": b""}}, {"main": first})
    push(
        name,
        ONE,
        code=2,
        last_line=[f"hf://{name}", "anyone can read it", "marked private", "--visibility public", "--i-understand"],
    )
    expect(
        not [m for _, m, _, _ in hub.requests if m != "GET"] and len(hub.requests) == 1,
        "a private package to a public repository: refused after one question",
    )
    push(name, OPEN)
    expect(head(name) == FILES[OPEN], "a package that says public goes there")
    push(name, ONE, "--i-understand")
    expect(head(name) == FILES[ONE], "and any other for who understands")
    name = fresh()
    push(name, ONE, "--public", code=2, last_line=["anyone can read it"])
    expect(name not in hub.repositories, "no public repository is made for a private package")
    push(name, OPEN, "--public")
    expect(not hub.repositories[name].private, "--public makes a public one for a public package")
    name = fresh()
    push(name, ONE, "--public", "--i-understand")
    expect(not hub.repositories[name].private, "or for who understands")
    name = fresh()
    push(name, OPEN)
    expect(hub.repositories[name].private, "without --public even a public package's repository is private")
    push(name, OPEN, "--public", code=2, last_line=["exists and is private", "settings"])
    name = fresh()
    hub.answers["create"] = lambda h, answer: setattr(h.repositories[name], "private", False) or answer
    push(name, ONE, code=2, last_line=["was to be made private and is public", "nothing was sent", "settings"])
    expect(not puts() and not writes("commit"), "a hub that does not do as told gets nothing")
    for info in ({"id": name}, {"private": "no"}, []):
        hub.clear()
        hub.info = json.dumps(info).encode()
        push(name, ONE, code=7, last_line=["private: expected true or false"])


def check_token():
    name = fresh()
    push(name, ONE, env={"HF_TOKEN": ""}, code=2, last_line=["no token", "HF_TOKEN"])
    push(name, ONE, env={"HF_TOKEN": "hf_wrong"}, code=2, last_line=["HTTP 401", "HF_TOKEN", "refused"])
    push("theirs/draft", ONE, code=2, last_line=["HTTP 403", "refused", "theirs"])
    push(name, ONE, env={"HF_ENDPOINT": "http://192.0.2.1"}, code=2, last_line=["expected https"])
    push(name, ONE)
    pull(name, env={"HF_TOKEN": "hf_wrong"}, code=(2, 7))
    pull(name, env={"HF_TOKEN": ""}, code=7, last_line=["no such repository", "HF_TOKEN"])
    expect(pull(name)[1] == FILES[ONE], "a private package is pulled with the token")
    expect(
        hub.tokens("cdn") and not any(hub.tokens("cdn")) and not any(hub.tokens("store")),
        "which neither CDN nor store sees",
    )


def check_interruptions():
    name = fresh()
    hub.failures = {kind: [503] for kind in ("create", "preupload", "batch", "commit", "tag", "verify")}
    hub.store_failures = [500, -1000]
    push(name, ONE)
    expect(
        head(name) == FILES[ONE] and not hub.store_failures and not any(hub.failures.values()),
        "every request is tried again",
    )

    name = fresh()
    hub.failures = {kind: [0] for kind in ("create", "batch", "commit", "tag", "verify")}
    push(name, ONE)
    repository = hub.repositories[name]
    expect(
        head(name) == FILES[ONE]
        and len(repository.log) == 1
        and repository.tags == {f"sha256-{ONE}": repository.refs["main"]},
        "a lost reply makes no second commit",
    )
    name = fresh()
    hub.failures = {kind: [0] for kind in ("branch", "commit", "tag")}
    push(name, ONE, "--channel", "production")
    expect(
        head(name, "production") == FILES[ONE] and set(hub.repositories[name].refs) == {"main", "production"},
        "nor on the way to a new channel",
    )

    name = fresh()
    hub.store_failures = [0, 500, 500, 500, 500, 500]
    push(name, ONE, code=75, last_line=["HTTP 500", "5 attempts", "the same command again"])
    expect(head(name) == {} and len(hub.lfs) == 1, "a push that breaks off shows nothing")
    hub.clear()
    push(name, ONE)
    expect(head(name) == FILES[ONE] and len(puts()) == 3, "and goes on with the file that it broke off at")

    name = fresh()
    hub.multipart_from, hub.part_bytes = 50000, 17000
    push(name, ONE)
    parts = sum(-(-len(d) // 17000) for d in FILES[ONE].values() if len(d) >= 50000)
    expect(
        head(name) == FILES[ONE] and sum("/" in path[1:] for path in puts()) == parts and len(writes("complete")) == 2,
        f"large files in {parts} parts",
    )
    name = fresh()
    hub.multipart_from, hub.part_bytes, hub.store_failures = 50000, 17000, [0, 0, -500, 503]
    push(name, ONE)
    expect(head(name) == FILES[ONE], "parts are sent again")

    # Kills a push at several requests: during an upload, and again between commit and tag.
    name = fresh()
    command = [
        SPECDEC,
        "-q",
        "package",
        "push",
        f"{STORE}:sha256-{ONE}",
        "--store",
        f"hf://{name}",
        "--channel",
        "production",
    ]
    die = lambda h, answer: (child.kill(), time.sleep(0.2)) and answer
    for kind in ("batch", "commit", "tag", "branch"):
        hub.answers = {kind: die}
        child = subprocess.Popen(command)
        expect(child.wait() == -signal.SIGKILL, f"killed at {kind}")
        expect(
            "production" not in hub.repositories[name].refs or head(name, "production") == FILES[ONE],
            "the channel names the package or nothing",
        )
    hub.clear()
    push(name, ONE, "--channel", "production")
    repository = hub.repositories[name]
    expect(
        head(name, "production") == FILES[ONE]
        and set(repository.refs) == {"main", "production"}
        and set(repository.tags) == {f"sha256-{ONE}"},
        "the next one ends all of them well",
    )
    expect(len(repository.log) == 1, "with the commit that was made")


def check_publishers():
    name = fresh()
    push(name, ONE)
    repository = hub.repositories[name]

    def another():
        commit = commit_name("another")
        repository.commits[commit] = repository.commits[repository.refs["main"]] | {"theirs.txt": b"x"}
        repository.refs["main"] = commit

    hub.clear()
    hub.before_commit = [another]
    push(name, TWO, code=75, last_line=["another publisher", "try again"])
    expect("theirs.txt" in head(name), "what another published is not overwritten unseen")
    hub.clear()
    push(name, TWO)
    expect(head(name) == FILES[TWO] and not puts(), "but by trying again, which sends nothing twice")

    def the_same():
        commit = commit_name("the same")
        repository.commits[commit] = FILES[ONE] | {".gitattributes": b""}
        repository.refs["main"] = commit

    hub.clear()
    hub.before_commit = [the_same]
    expect(push(name, ONE)["commit"] == commit_name("the same"), "two publishers of the same package agree")
    repository.tags[f"sha256-{TWO}"] = repository.refs["main"]
    push(name, TWO, code=7, last_line=["tag", "is on another commit", "moved"])
    pull(f"{name}:sha256-{TWO}", code=7, last_line=["has the digest", "expected"])
    name = fresh()
    children = [
        subprocess.Popen(
            [SPECDEC, "-q", "package", "push", f"{STORE}:sha256-{d}", "--store", f"hf://{name}", "--channel", "c"],
            stderr=subprocess.DEVNULL,
        )
        for d in (ONE, TWO, OPEN)
    ]
    codes = [c.wait() for c in children]
    expect(set(codes) <= {0, 75} and 0 in codes, f"three processes at once: {codes}")
    for digest in (ONE, TWO, OPEN):
        push(name, digest, "--channel", "c")
    expect(
        head(name, "c") == FILES[OPEN]
        and set(hub.repositories[name].refs) == {"main", "c"}
        and len(hub.repositories[name].tags) == 3,
        "one after the other all are there",
    )


def check_hostile():
    def lies(kind, answer, code, *texts, digest=ONE):
        name = fresh()
        hub.answers = {kind: (lambda h, right: answer(right) if callable(answer) else answer)}
        push(name, digest, code=code, last_line=texts)
        expect(
            not puts() or kind not in ("batch", "preupload"),
            f"{kind}: exit {code}, {', '.join(texts)}: nothing was sent",
        )
        return name

    def batch(change):
        def answer(right):
            change(right["objects"][0])
            return right

        return answer

    def upload(**changes):
        return batch(lambda o: o["actions"]["upload"].update(changes))

    for elsewhere in (
        "http://192.0.2.1/x?signature=s3cret",
        "http://evil.example/x",
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "//x",
        "",
        "https://a b/",
        "https://x/" + "a" * 9000,
    ):
        lies("batch", upload(href=elsewhere), 7, "expected an address of https")
    lies(
        "batch",
        batch(lambda o: o["actions"]["verify"].update(href="https://192.0.2.1/verify")),
        7,
        "verify",
        "the token goes to",
    )
    lies("batch", upload(href=7), 7, "href")
    lies("batch", upload(header={"chunk_size": "1"}), 7, "chunk_size")
    lies("batch", upload(header={"chunk_size": "0"}), 7, "chunk_size")
    lies("batch", upload(header={"chunk_size": "-5"}), 7, "chunk_size")
    lies("batch", upload(header={"chunk_size": 8000, "1": "https://127.0.0.1/1"}), 7, "1 addresses for 12 parts")
    lies("batch", upload(header={"chunk_size": 2000000, "1": "http://192.0.2.1/1"}), 7, "expected an address of https")
    lies("batch", batch(lambda o: o.update(oid="0" * 64)), 7, "expected the one that was asked for")
    lies("batch", batch(lambda o: o.update(error={"code": 422, "message": "\x1b[2J" + hub.token})), 7, "error 422")
    lies("batch", {"objects": []}, 7, "objects")
    lies("batch", b"<html>", 7, "objects/batch")
    lies("batch", b" " * (20 << 20), 75, "larger than")
    lies("preupload", {"files": []}, 7, "does not say how")
    lies("preupload", b"[" * 100000, 7, "preupload")
    lies("commit", {"commitOid": "../../etc"}, 7, "commitOid")
    name = lies("refs", {"branches": [{"name": "main", "targetCommit": "main"}], "tags": []}, 7, "targetCommit")
    lies("batch", batch(lambda o: o.pop("actions")), 7, "HTTP 400")  # the hub says that it has the file
    for bad in ("../../evil", "/etc/passwd", "a\\b", "x\n"):
        hub.clear()
        hub.extra_names = [bad]
        push(name, ONE, code=7, last_line=["name that leads elsewhere"])
    hub.clear()
    hub.status = [(307, {"Location": "http://192.0.2.1/"})]
    push(name, ONE, code=2, last_line=["moved"])

    hub.clear()
    push(name, ONE)
    hub.clear()
    hub.at, hub.corrupt = "target/model", 1
    _, store = pull(name, code=7, last_line=["is not what the manifest says"])
    expect(not list((store / "packages").iterdir()), "a byte that changed on the way: no package")
    hub.extra = 10
    pull(name, code=7, last_line=["has more than"])
    hub.clear()
    hub.at, hub.cut = "target/model", [1000, 60000, 5]
    expect(pull(name)[1] == FILES[ONE], "a line that breaks is continued")
    ranges = [h.get("range") for p, _, _, h in hub.requests if p == "cdn" and h.get("range")]
    expect(len(ranges) == 3, f"from where it broke: {ranges}")
    hub.clear()
    hub.at, hub.cut, hub.ignore_range = "target/model", [1000], True
    expect(pull(name)[1] == FILES[ONE], "a server that starts over is read up to where it was")
    hub.clear()
    store = scratch / "resumed"
    hub.at, hub.cut = "target/model", [400000] + [0] * 5
    run("package", "pull", f"hf://{name}", "--store", store, code=75)
    hub.clear()
    run("package", "pull", f"hf://{name}", "--store", store)
    expect(
        [h.get("range") for p, _, path, h in hub.requests if p == "cdn" and "target/model.safetensors" in path]
        == ["bytes=400000-"],
        "and by the next pull",
    )
    repository = hub.repositories[name]
    repository.commits[repository.refs["main"]]["manifest.json"] = FILES[ONE]["manifest.json"].replace(
        b"draft/config.json", b"../draft/config.js"
    )
    pull(name, code=7, last_line=["relative path"])


def check_exchange():
    """Exchanges packages with the real huggingface_hub, which runs in a new process each time, so that it reads its
    settings from the environment anew."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        return print("not tested: the Python package huggingface_hub is not there (cmake/setup.sh installs it)")

    def python(code):
        done = subprocess.run(
            [sys.executable, "-c", "import huggingface_hub as h\n" + code],
            env=os.environ | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            capture_output=True,
            text=True,
        )
        expect(done.returncode == 0, f"huggingface_hub: {code}{done.stderr[-2000:] if done.returncode else ''}")
        return done.stdout.strip()

    name = fresh()
    push(name, ONE)
    got = contents(python(f"print(h.snapshot_download('{name}', revision='sha256-{ONE}'))"))
    got.pop(".gitattributes")
    expect(got == FILES[ONE], "snapshot_download reads what was pushed")
    name = fresh()
    hub.multipart_from, hub.part_bytes = 500000, 100000
    python(
        f"h.create_repo('{name}', private=True); i = h.upload_folder(repo_id='{name}', "
        f"folder_path={str(STORE / f'packages/sha256-{TWO}')!r}); "
        f"h.create_tag('{name}', tag='sha256-{TWO}', revision=i.oid)"
    )
    expect(
        head(name) == FILES[TWO] and pull(f"{name}:sha256-{TWO}")[1] == FILES[TWO], "pull reads what upload_folder sent"
    )
    hub.clear()
    expect(not push(name, TWO)["is_new"] and not writes("commit"), "and push finds it there")
    return None


for check in (
    check_there_and_back,
    check_signatures,
    check_visibility,
    check_token,
    check_interruptions,
    check_publishers,
    check_hostile,
    check_exchange,
):
    if (
        not sys.argv[2:] or check.__name__.removeprefix("check_") in sys.argv[2:]
    ):  # usage: python3 push_test.py BUILD_DIR [token …]
        check()
expect(
    not any(secret in text for text in outputs for secret in (hub.token, "s3cret")),
    "neither the token nor a signature is in any output",
)
shutil.rmtree(scratch)
