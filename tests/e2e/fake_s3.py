"""Imitates an S3 server on 127.0.0.1. It answers the requests that specdec sends and checks each signature. Tests can
set faults, which it then produces."""

import hashlib
import hmac
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeS3:
    def __init__(self, access="AKTEST", secret="secret/key+1", region="us-test-1"):
        self.access, self.secret, self.region = access, secret, region
        self.objects, self.uploads, self.requests, self.lock = {}, {}, [], threading.Lock()
        # Faults of the next requests. `statuses`: HTTP statuses to answer with. `conditional`: the same for conditional
        # writes. `cut`: numbers of bytes after which downloads of weights break off.
        self.statuses, self.conditional, self.cut = [], [], []
        s3 = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def serve(self):
                try:
                    s3.serve(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def environment(self):
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": self.access,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
        }

    def right(self, to, body):
        """Returns whether the request has the Signature Version 4 that this server computes from it."""
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request,SignedHeaders=([^,]+),"
            r"Signature=([0-9a-f]{64})",
            to.headers.get("Authorization", ""),
        )
        if (
            not found
            or found[1] != self.access
            or found[3] != self.region
            or hashlib.sha256(body).hexdigest() != to.headers["x-amz-content-sha256"]
        ):
            return False
        path, _, query = to.path.partition("?")
        names = found[4].split(";")
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
            return False
        canonical = "\n".join(
            [
                to.command,
                path,
                query,
                *(f"{n}:{to.headers[n].strip()}" for n in names),
                "",
                found[4],
                to.headers["x-amz-content-sha256"],
            ]
        )
        key = ("AWS4" + self.secret).encode()
        for text in (found[2], self.region, "s3", "aws4_request"):
            key = hmac.new(key, text.encode(), hashlib.sha256).digest()
        text = "\n".join(
            [
                "AWS4-HMAC-SHA256",
                to.headers["x-amz-date"],
                f"{found[2]}/{self.region}/s3/aws4_request",
                hashlib.sha256(canonical.encode()).hexdigest(),
            ]
        )
        return hmac.compare_digest(hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), found[5])

    def serve(self, to):
        body = to.rfile.read(int(to.headers.get("Content-Length") or 0))
        path, _, query = to.path.partition("?")
        path, query = urllib.parse.unquote(path).lstrip("/"), urllib.parse.parse_qs(query, keep_blank_values=True)
        with self.lock:
            self.requests.append((to.command, to.path))
            if self.statuses:
                return self.reply(to, self.statuses.pop(0), b"<Error><Code>SlowDown</Code></Error>")
            if not self.right(to, body):
                return self.reply(to, 403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
            if to.command == "PUT" and "partNumber" in query:
                self.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
                return self.reply(to, 200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
            if to.command == "PUT":
                if to.headers.get("If-None-Match") == "*" and self.conditional:
                    return self.reply(
                        to, self.conditional.pop(0), b"<Error><Code>ConditionalRequestConflict</Code></Error>"
                    )
                if to.headers.get("If-None-Match") == "*" and path in self.objects:
                    return self.reply(to, 412, b"<Error><Code>PreconditionFailed</Code></Error>")
                self.objects[path] = body
                return self.reply(to, 200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
            if to.command == "POST" and "uploads" in query:
                upload = f"id/{len(self.uploads)}="
                self.uploads[upload] = {}
                return self.reply(to, 200, f"<X><UploadId>{upload}</UploadId></X>".encode())
            if to.command == "POST":
                parts = self.uploads.pop(query["uploadId"][0])
                if [int(n) for n in re.findall(rb"<PartNumber>(\d+)<", body)] != sorted(parts):
                    return self.reply(to, 400, b"<Error><Code>InvalidPart</Code></Error>")
                self.objects[path] = b"".join(parts[n] for n in sorted(parts))
                return self.reply(to, 200, b"<CompleteMultipartUploadResult/>")
            if to.command == "DELETE":
                self.uploads.pop(query["uploadId"][0], None)
                return self.reply(to, 204)
            if path not in self.objects:
                return self.reply(to, 404, b"<Error><Code>NoSuchKey</Code></Error>")
            data, status, headers = self.objects[path], 200, {}
            if asked := re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range", "")):
                begin, status = int(asked[1]), 206
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                data = data[begin:]
            cut = self.cut.pop(0) if self.cut and to.command == "GET" and path.endswith(".safetensors") else None
        self.reply(to, status, data, headers, cut)

    @staticmethod
    def reply(to, status, body=b"", headers=None, cut=None):
        to.send_response(status)
        for name, value in (headers or {}).items():
            to.send_header(name, value)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        if to.command != "HEAD":
            to.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            to.close_connection = True
