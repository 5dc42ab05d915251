"""Imitates a Hugging Face hub on 127.0.0.1 that can be read and written. A second port is the CDN to which downloads of
large files are redirected. A third port is the object store to which they are uploaded. Tests can set faults, which the
hub then produces."""

import base64
import hashlib
import json
import re
import ssl
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 2000  # bytes; files of at least this size are served as LFS files


def git_blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    def __init__(self, commits, refs, gated=False, private=False):
        self.commits, self.refs, self.gated, self.private = commits, refs, gated, private  # commit -> {file: bytes}
        self.tags, self.log = {}, []  # log: (branch, parent, commit, header) of each commit made through the API

    def commit_of(self, revision):
        if revision in self.refs or revision in self.tags:
            return self.refs.get(revision) or self.tags[revision]
        found = [c for c in self.commits if c.startswith(revision) and len(revision) >= 7]
        return found[0] if len(found) == 1 else None


class FakeHub:
    """A hub. `requests` holds (port name, method, path, headers) of every request since clear()."""

    def __init__(self, token="hf_secret_0123456789"):
        self.token, self.repositories, self.requests, self.lock = token, {}, [], threading.Lock()
        self.lfs, self.uploads = {}, {}  # sha256 -> bytes; upload id -> {"oid", "size", "parts"}
        self.hub, self.cdn, self.store = self.listen("hub"), self.listen("cdn"), self.listen("store")
        self.clear()

    def clear(self):
        """Forgets requests and faults."""
        self.requests = []
        self.status = []  # statuses for the next requests to the hub, each with headers: (503, {})
        self.extra_names = []  # names of files that are listed in addition to the real ones
        self.info = None  # body of /api/models/... that replaces the right one
        self.cut = []  # for the next downloads: break the connection after this many bytes
        self.corrupt = 0  # number of next downloads in which one byte is changed
        self.ignore_range = False
        self.stall = []  # for the next downloads: seconds to pause in the middle of the body
        self.pause = 0  # seconds before every download
        self.extra = 0  # number of bytes that downloads send beyond the promised size
        self.etag = None  # etag of every file, instead of the right one
        self.size = None
        self.cdn_location = None  # where large files are redirected to instead of the CDN
        self.at = ""  # downloads fail only for paths that contain this
        self.stop = threading.Event()
        self.multipart_from = 1 << 40  # bytes; uploads of at least this size are made in parts of part_bytes
        self.part_bytes = 1000
        self.verify = True
        # kind of write (a key of WRITES) -> f(hub, right answer), which returns the answer to send instead
        self.answers = {}
        # Kind of write -> statuses of the next ones. 0: the write is done, but the connection breaks instead of an
        # answer.
        self.failures = {}
        self.store_failures = []  # for the next PUTs: a status, or -n to break off after n bytes
        self.before_commit = []  # for the next commits: called before they are processed

    def listen(self, name, certificate=None):
        """Opens one more port of this name. With `certificate`, a pair of files (certificate, key), the port speaks
        TLS. Returns its URL."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if name != "store" else b""
                with hub.lock:
                    hub.requests.append(
                        (name, self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
                    )
                try:
                    getattr(hub, "_serve_" + name)(self)
                except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                    self.close_connection = True

            do_POST = do_PUT = do_DELETE = do_GET

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"

    def seen(self, port=None, method=None):
        return [path for p, m, path, _ in self.requests if port in (None, p) and method in (None, m)]

    def tokens(self, port):
        return [h.get("authorization") for p, _, _, h in self.requests if p == port]

    @staticmethod
    def _reply(to, status, headers=None, body=b"", length=None):
        to.send_response(status)
        for k, v in (headers or {}).items():
            to.send_header(k, v)
        to.send_header("Content-Length", str(len(body) if length is None else length))
        to.end_headers()
        if to.command != "HEAD":
            to.wfile.write(body)

    def _serve_hub(self, to):
        if self.status:
            status, headers = self.status.pop(0)
            return self._reply(to, status, headers, b"<html>not json</html>")
        path, _, query = to.path.partition("?")
        if to.command not in ("GET", "HEAD"):
            return self._write(to, path, query)
        if refs := re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", path):
            return self._refs(to, refs[1])
        if info := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            repository, revision = info[1], (info[3] or "main").replace("%2F", "/")
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository, revision = file[1], file[2].replace("%2F", "/")
        elif file := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            repository, revision = file[1], file[2]
        else:
            return self._reply(to, 404)
        if repository == "org/old-name":  # this repository was renamed to org/tiny
            return self._reply(to, 307, {"Location": to.path.replace("org/old-name", "org/tiny")})
        repo = self.repositories.get(repository)
        allowed = to.headers.get("Authorization") == f"Bearer {self.token}"
        if repo is None or (repo.private and not allowed):
            return self._reply(to, 404 if allowed else 401, {"X-Error-Code": "RepoNotFound"})
        commit = repo.commit_of(revision)
        if commit is None:
            return self._reply(to, 404, {"X-Error-Code": "RevisionNotFound"})
        files = repo.commits[commit]
        if info:
            if info[2] == "tree":
                return self._json(to, [self._tree_entry(n, files[n]) for n in sorted(files)])
            names = [self._sibling(n, files[n], "blobs=" in query) for n in sorted(files)] + [
                {"rfilename": n} for n in self.extra_names
            ]
            body = {
                "id": repository,
                "sha": commit,
                "private": repo.private,
                "tags": [],
                "downloads": 0,
                "siblings": names,
            }
            return (
                self._json(to, body)
                if self.info is None
                else self._reply(to, 200, {"Content-Type": "application/json"}, self.info)
            )
        if repo.gated and not allowed:
            return self._reply(to, 403 if "Authorization" in to.headers else 401, {"X-Error-Code": "GatedRepo"})
        wanted = urllib.parse.unquote(file[3])
        if wanted not in files:
            return self._reply(to, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        self._file(to, repository, commit, wanted, files[wanted])

    def _json(self, to, value, status=200):
        self._reply(to, status, {"Content-Type": "application/json"}, json.dumps(value).encode())

    @staticmethod
    def _sibling(name, data, blobs):
        large = (
            {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
            if len(data) >= LARGE
            else {}
        )
        return {"rfilename": name} | ({"size": len(data), "blobId": git_blob_id(data)} | large if blobs else {})

    def _refs(self, to, repository):
        repo, allowed = self.repositories.get(repository), to.headers.get("Authorization") == f"Bearer {self.token}"
        if repo is None or (repo.private and not allowed):
            return self._reply(to, 404 if allowed else 401, {"X-Error-Code": "RepoNotFound"})
        listed = lambda kind, refs: [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c} for n, c in refs.items()]
        answer = {"branches": listed("heads", repo.refs), "tags": listed("tags", repo.tags), "converts": []}
        return self._json(to, self.answers["refs"](self, answer) if "refs" in self.answers else answer)

    @staticmethod
    def _tree_entry(name, data):
        entry = {"type": "file", "path": name, "size": len(data), "oid": git_blob_id(data)}
        if len(data) >= LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def _file(self, to, repository, commit, name, data):
        headers, name = {"X-Repo-Commit": commit}, urllib.parse.quote(name)
        if len(data) < LARGE and not to.path.startswith("/api/resolve-cache/"):  # small files, as by the real hub
            return self._reply(
                to,
                307,
                {"Location": f"/api/resolve-cache/models/{repository}/{commit}/{name}", "ETag": '"of-the-redirect"'},
            )
        if len(data) < LARGE:
            return self._bytes(to, data, {**headers, "ETag": f'"{self.etag or git_blob_id(data)}"'})
        headers |= {
            "X-Linked-Etag": f'"{self.etag or hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(self.size or len(data)),
            "ETag": '"of-the-redirect"',
            "Location": self.cdn_location or f"{self.cdn}/{repository}/{commit}/{name}?signature=x",
        }
        self._reply(to, 302, headers)

    WRITES = {
        "create": r"/api/repos/create",
        "preupload": r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)",
        "batch": r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch",
        "verify": r"/([^/]+/[^/]+)\.git/info/lfs/verify",
        "complete": r"/api/complete_multipart",
        "commit": r"/api/models/([^/]+/[^/]+)/commit/([^/]+)",
        "branch": r"/api/models/([^/]+/[^/]+)/branch/([^/]+)",
        "tag": r"/api/models/([^/]+/[^/]+)/tag/([^/]+)",
    }

    def _write(self, to, path, query):
        kind, found = next(
            ((k, f) for k, pattern in self.WRITES.items() if (f := re.fullmatch(pattern, path))), (None, None)
        )
        if kind is None:
            return self._reply(to, 404)
        if kind == "complete":  # the URL is signed, so a token must not be sent
            if "signature=s3cret" not in query or "Authorization" in to.headers:
                return self._reply(to, 403)
        elif to.headers.get("Authorization") != f"Bearer {self.token}":
            return self._reply(to, 401)
        names = [g.replace("%2F", "/") for g in found.groups()]
        repo = self.repositories.get(names[0]) if names else None
        if names and repo is None:
            return self._reply(to, 404, {"X-Error-Code": "RepoNotFound"})
        failure = self.failures[kind].pop(0) if self.failures.get(kind) else None
        if failure:
            return self._reply(to, failure)
        with self.lock:
            status, answer = getattr(self, f"_do_{kind}")(
                to, repo, *names, **({"query": query} if kind == "complete" else {})
            )
        if failure == 0:
            to.close_connection = True
            return None
        if kind in self.answers and status < 300:
            answer = self.answers[kind](self, answer)
        return self._json(to, answer, status) if not isinstance(answer, bytes) else self._reply(to, status, {}, answer)

    def _do_create(self, to, _):
        wish = json.loads(to.body)
        name = f"{wish['organization']}/{wish['name']}"
        if wish["organization"] != "org":
            return 403, {"error": "not yours"}
        if name in self.repositories:
            return 409, {"error": "You already created this model repo"}
        first = commit_name("first of " + name)
        self.repositories[name] = Repository(
            {first: {".gitattributes": b"*.safetensors filter=lfs\n"}},
            {"main": first},
            private=wish["visibility"] == "private",
        )
        return 200, {"url": f"{self.hub}/{name}", "name": name}

    def _do_preupload(self, to, repo, _, branch):
        if repo.commit_of(branch) is None:
            return 404, {}
        asked = json.loads(to.body)["files"]
        assert len(asked) <= 256 and all(
            len(base64.b64decode(f["sample"], validate=True)) == min(f["size"], 512) for f in asked
        )
        return 200, {
            "files": [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["size"] >= LARGE else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for f in asked
            ]
        }

    def _do_batch(self, to, _, name):
        wish = json.loads(to.body)
        assert (
            to.headers["Content-Type"] == to.headers["Accept"] == "application/vnd.git-lfs+json"
            and wish["operation"] == "upload"
            and wish["hash_algo"] == "sha256"
        )
        assert {"basic", "multipart"} >= set(wish["transfers"])
        return 200, {
            "transfer": "basic",
            "objects": [self._instructions(name, o["oid"], o["size"]) for o in wish["objects"]],
        }

    def _instructions(self, name, oid, size):
        if oid in self.lfs:
            return {"oid": oid, "size": size}
        upload = f"u{len(self.uploads)}"
        self.uploads[upload] = {"oid": oid, "size": size, "parts": {}}
        url, header = f"{self.store}/{upload}?signature=s3cret", {}
        if size >= self.multipart_from:
            count = -(-size // self.part_bytes)
            header = {"chunk_size": str(self.part_bytes)} | {
                f"{n:05}": f"{self.store}/{upload}/{n}?signature=s3cret" for n in range(1, count + 1)
            }
            url = f"{self.hub}/api/complete_multipart?uploadId={upload}&signature=s3cret"
        verify = {"verify": {"href": f"{self.hub}/{name}.git/info/lfs/verify"}} if self.verify else {}
        return {"oid": oid, "size": size, "actions": {"upload": {"href": url, "header": header}} | verify}

    def _do_complete(self, to, _, query):
        upload = self.uploads[re.search(r"uploadId=(\w+)", query)[1]]
        done = json.loads(to.body)
        parts = [upload["parts"][p["partNumber"]] for p in done["parts"]]
        data = b"".join(parts)
        if (
            [p["etag"] for p in done["parts"]] != [f'"{hashlib.md5(p).hexdigest()}"' for p in parts]
            or not self._keep(upload, data)
            or done["oid"] != upload["oid"]
        ):
            return 400, {"error": "parts"}
        return 200, {}

    def _keep(self, upload, data):
        if len(data) != upload["size"] or hashlib.sha256(data).hexdigest() != upload["oid"]:
            return False
        self.lfs[upload["oid"]] = data
        return True

    def _do_verify(self, to, _, name):
        wish = json.loads(to.body)
        return (200, {}) if len(self.lfs.get(wish["oid"], b"")) == wish["size"] else (422, {"error": "not there"})

    def _do_commit(self, to, repo, name, branch):
        if self.before_commit:
            self.before_commit.pop(0)()
        if branch not in repo.refs:
            return 404, {"error": "revision"}
        lines = [json.loads(line) for line in to.body.splitlines()]
        assert (
            to.headers["Content-Type"] == "application/x-ndjson"
            and lines[0]["key"] == "header"
            and lines[0]["value"]["summary"]
        )
        parent = repo.refs[branch]
        if lines[0]["value"].get("parentCommit", parent) != parent:
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        files = dict(repo.commits[parent])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif line["key"] == "lfsFile":
                data = self.lfs.get(value["oid"])
                if data is None or value["algo"] != "sha256" or value.get("size", len(data)) != len(data):
                    return 400, {"error": "LFS pointer to nothing"}
                files[value["path"]] = data
            elif line["key"] == "deletedFile" and value["path"] in files:
                del files[value["path"]]
            else:
                return 400, {"error": line["key"]}
        commit = commit_name(f"{name} {parent} {len(repo.log)}")
        repo.commits[commit], repo.refs[branch] = files, commit
        repo.log.append((branch, parent, commit, lines[0]["value"]))
        return 200, {"commitUrl": f"{self.hub}/{name}/commit/{commit}", "commitOid": commit, "success": True}

    def _do_branch(self, to, repo, _, branch):
        if to.command == "DELETE":
            if branch == "main":
                return 403, {}
            return (200, {}) if repo.refs.pop(branch, None) else (404, {})
        if branch in repo.refs:
            return 409, {}
        repo.refs[branch] = repo.commit_of(json.loads(to.body)["startingPoint"])
        return 201, {}

    def _do_tag(self, to, repo, _, revision):
        if to.command == "DELETE":
            return (200, {}) if repo.tags.pop(revision, None) else (404, {})
        tag = json.loads(to.body)["tag"]
        if tag in repo.tags:
            return 409, {}
        repo.tags[tag] = repo.commit_of(revision)
        return 201, {}

    def _serve_store(self, to):
        """Serves PUT /upload and /upload/part as S3 does. The URL is signed, so a request needs no token, and a request
        with a token is refused."""
        path, _, query = to.path.partition("?")
        upload, _, part = path.strip("/").partition("/")
        failure = self.store_failures.pop(0) if self.store_failures else 0
        if failure < 0:
            to.rfile.read(-failure)
            to.close_connection = True
            return None
        body = to.rfile.read(int(to.headers["Content-Length"]))
        if failure or query != "signature=s3cret" or "Authorization" in to.headers or to.command != "PUT":
            return self._reply(to, failure or 403)
        with self.lock:
            if part:
                self.uploads[upload]["parts"][int(part)] = body
            elif not self._keep(self.uploads[upload], body):
                return self._reply(to, 400)
        return self._reply(to, 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def _serve_cdn(self, to):
        organisation, name, commit, file = to.path.partition("?")[0].strip("/").split("/", 3)
        data = self.repositories[f"{organisation}/{name}"].commits[commit][urllib.parse.unquote(file)]
        self._bytes(to, data, {"ETag": '"of-the-cdn"'})

    def _bytes(self, to, data, headers):
        begin, status = 0, 200
        if (asked := re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range", ""))) and not self.ignore_range:
            begin, status = int(asked[1]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        if to.command == "GET" and len(data) >= LARGE and self.at in to.path:
            if self.corrupt:
                self.corrupt -= 1
                body = bytes([body[0] ^ 1]) + body[1:]
            body += b"x" * self.extra
            if self.cut:
                to.close_connection = True
                headers["Retry-After"] = "1"  # in seconds; replaces the client's own doubling wait
                return self._reply(to, status, headers, body[: self.cut.pop(0)], len(body))
            time.sleep(self.pause)
            if self.stall:
                self._reply(to, status, headers, body[: len(body) // 3 * 2], len(body))
                to.wfile.flush()
                self.stop.wait(self.stall.pop(0))
                to.close_connection = True
                return None
        return self._reply(to, status, headers, body)


def commit_name(text):
    return hashlib.sha1(text.encode()).hexdigest()
