"""A Hugging Face hub on 127.0.0.1, and a second port that plays the CDN which large files are redirected to. Faults are set by tests."""
import hashlib
import json
import re
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 2000  # bytes; from here on a file is served as LFS files are


def git_blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    def __init__(self, commits, refs, gated=False, private=False):
        self.commits, self.refs, self.gated, self.private = commits, refs, gated, private  # commit -> {name: bytes}

    def commit_of(self, revision):
        if revision in self.refs:
            return self.refs[revision]
        found = [c for c in self.commits if c.startswith(revision) and len(revision) >= 7]
        return found[0] if len(found) == 1 else None


class FakeHub:
    """`requests` holds (port name, method, path, headers) of every request since clear()."""

    def __init__(self, token="hf_secret_0123456789"):
        self.token, self.repositories, self.requests, self.lock = token, {}, [], threading.Lock()
        self.hub, self.cdn = self.listen("hub"), self.listen("cdn")
        self.clear()

    def clear(self):
        """Forgets requests and faults."""
        self.requests = []
        self.status = []          # statuses for the next requests to the hub, each with headers: (503, {})
        self.extra_names = []     # siblings that are listed beside the real ones
        self.info = None          # body of /api/models/... instead of the right one
        self.cut = []             # of the next downloads: break the connection after so many bytes
        self.corrupt = 0          # of the next downloads: change a byte
        self.ignore_range = False
        self.stall = []           # of the next downloads: seconds to stand still in mid body
        self.pause = 0            # seconds before every download
        self.extra = 0            # bytes beyond the promised
        self.etag = None          # for every file
        self.size = None
        self.cdn_location = None  # where large files are redirected to, instead of the CDN
        self.stop = threading.Event()

    def listen(self, name, certificate=None):
        """One more port of this name; with (certificate, key) files it speaks TLS."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                with hub.lock:
                    hub.requests.append((name, self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                try:
                    getattr(hub, "_serve_" + name)(self)
                except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                    self.close_connection = True

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
        if info := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            repository, revision = info[1], (info[3] or "main").replace("%2F", "/")
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository, revision = file[1], file[2].replace("%2F", "/")
        elif file := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            repository, revision = file[1], file[2]
        else:
            return self._reply(to, 404)
        if repository == "org/old-name":  # renamed
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
            names = [{"rfilename": n} for n in [*sorted(files), *self.extra_names]]
            body = {"id": repository, "sha": commit, "private": repo.private, "tags": [], "downloads": 0, "siblings": names}
            return self._json(to, body) if self.info is None else self._reply(to, 200, {"Content-Type": "application/json"}, self.info)
        if repo.gated and not allowed:
            return self._reply(to, 403 if "Authorization" in to.headers else 401, {"X-Error-Code": "GatedRepo"})
        if file[3] not in files:
            return self._reply(to, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        self._file(to, repository, commit, file[3], files[file[3]])

    def _json(self, to, value):
        self._reply(to, 200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    @staticmethod
    def _tree_entry(name, data):
        entry = {"type": "file", "path": name, "size": len(data), "oid": git_blob_id(data)}
        if len(data) >= LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def _file(self, to, repository, commit, name, data):
        headers = {"X-Repo-Commit": commit}
        if len(data) < LARGE and not to.path.startswith("/api/resolve-cache/"):  # as the real hub does
            return self._reply(to, 307, {"Location": f"/api/resolve-cache/models/{repository}/{commit}/{name}", "ETag": '"of-the-redirect"'})
        if len(data) < LARGE:
            return self._bytes(to, data, {**headers, "ETag": f'"{self.etag or git_blob_id(data)}"'})
        headers |= {"X-Linked-Etag": f'"{self.etag or hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(self.size or len(data)), "ETag": '"of-the-redirect"',
                    "Location": self.cdn_location or f"{self.cdn}/{repository}/{commit}/{name}?signature=x"}
        self._reply(to, 302, headers)

    def _serve_cdn(self, to):
        organisation, name, commit, file = to.path.partition("?")[0].strip("/").split("/", 3)
        data = self.repositories[f"{organisation}/{name}"].commits[commit][file]
        self._bytes(to, data, {"ETag": '"of-the-cdn"'})

    def _bytes(self, to, data, headers):
        begin, status = 0, 200
        if (asked := re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range", ""))) and not self.ignore_range:
            begin, status = int(asked[1]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        if to.command == "GET" and len(data) >= LARGE:
            if self.corrupt:
                self.corrupt -= 1
                body = bytes([body[0] ^ 1]) + body[1:]
            body += b"x" * self.extra
            if self.cut:
                to.close_connection = True
                headers["Retry-After"] = "1"  # seconds: not the doubling wait
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
