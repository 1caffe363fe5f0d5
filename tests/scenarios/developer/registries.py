"""Package registries on loopback that speak as PyPI's simple index and the npm registry do."""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, distribution
from pathlib import Path
from urllib.parse import unquote

HOST = "packages.example"
"""What `day.py` finds on loopback."""


class Registry:
    """Serves what is in `pages`; `asked` are the paths that were fetched."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pages: dict[str, tuple[str, bytes]] = {}
        """Content type and content, by path."""
        self.asked: list[str] = []

    def add_wheel(self, name: str, content: bytes) -> None:
        project = name.partition("-")[0].replace("_", "-").lower()
        digest = hashlib.sha256(content).hexdigest()
        link = f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'
        self.pages[f"/simple/{project}/"] = ("text/html", link.encode())
        self.pages[f"/files/{name}"] = ("application/octet-stream", content)

    def add_node_package(
        self, name: str, files: Mapping[str, str], dependencies: Mapping[str, str], **manifest: object
    ) -> None:
        """Version 1.0.0."""
        manifest = {"name": name, "version": "1.0.0", "dependencies": dependencies, **manifest}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for file, text in {"package.json": json.dumps(manifest), **files}.items():
                entry = tarfile.TarInfo(f"package/{file}")
                entry.size, entry.mode = len(text.encode()), 0o755
                archive.addfile(entry, io.BytesIO(text.encode()))
        content = packed.getvalue()
        path = f"/{name}/-/{name}-1.0.0.tgz"
        dist = {
            "tarball": f"{self.url}{path}",
            "shasum": hashlib.sha1(content).hexdigest(),
            "integrity": f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}",
        }
        document = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**manifest, "dist": dist}}}
        self.pages[f"/{name}"] = ("application/vnd.npm.install-v1+json", json.dumps(document).encode())
        self.pages[path] = ("application/octet-stream", content)


def packed_wheel(name: str) -> tuple[str, bytes]:
    """An installed distribution as the wheel that it came from: its name, and its content."""
    found = distribution(name)
    tags = [value for key, value in _wheel_headers(found) if key == "Tag"]
    platforms = dict.fromkeys(tag.split("-")[2] for tag in tags)
    python, abi, _ = tags[0].split("-")
    python = ".".join(dict.fromkeys(tag.split("-")[0] for tag in tags)) or python
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        record = ""
        for file in found.files or ():
            outer = str(file)
            if outer.startswith("..") or "__pycache__" in outer or outer.endswith(("RECORD", "INSTALLER", "REQUESTED")):
                continue
            content = Path(str(file.locate())).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            archive.writestr(outer, content)
            record += f'"{outer}",sha256={digest},{len(content)}\n'
        information = next(str(file.parent) for file in found.files or () if str(file).endswith(".dist-info/METADATA"))
        archive.writestr(f"{information}/RECORD", f"{record}{information}/RECORD,,\n")
    stem = information.removesuffix(".dist-info")
    return f"{stem}-{python}-{abi}-{'.'.join(platforms)}.whl", packed.getvalue()


def _wheel_headers(found: Distribution) -> Sequence[tuple[str, str]]:
    lines = (found.read_text("WHEEL") or "").splitlines()
    return [(key, value) for key, _, value in (line.partition(": ") for line in lines)]


def plain_wheel(name: str, source: str) -> tuple[str, bytes]:
    """A package of one module."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", wheel)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return f"{name}-1.0-py3-none-any.whl", packed.getvalue()


@contextmanager
def a_registry(host: str) -> Generator[Registry]:
    """`host`: by which it is called; it listens on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            registry.asked.append(path)
            kind, content = registry.pages.get(path, ("text/plain", b"not here"))
            self.send_response(200 if path in registry.pages else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Cache-Control", "public, max-age=300")
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:  # npm asks for known holes in what it installs
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry = Registry(f"http://{host}:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
