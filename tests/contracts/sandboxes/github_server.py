"""As much of GitHub's GraphQL interface as the real `gh` needs to list and open pull requests."""

import json
import os
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.contracts.sandboxes.tls_server import TlsServer

TOKEN = "gho_hush"


class GitHubServer(TlsServer):
    def __init__(self, folder: Path) -> None:
        """`gh` knows hosts without ports, so it takes an address of its own. Raises `PermissionError`."""
        self.host = f"127.9.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
        super().__init__(self.host, 443, _Handler, folder / "github.pem")
        self.created: list[dict[str, Any]] = []
        self.credentials: set[str] = set()

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "PullRequestCreate" in query:
            self.created.append(variables["input"])
            return {"createPullRequest": {"pullRequest": {"id": "P2", "url": f"https://{self.host}/o/shop/pull/2"}}}
        if "RepositoryInfo" in query:
            return {
                "repository": {
                    "id": "R1",
                    "name": "shop",
                    "owner": {"login": "o"},
                    "defaultBranchRef": {"name": "main"},
                }
            }
        pulls = [{"number": 1, "title": "Sell more", "state": "OPEN", "headRefName": "more"}]
        nodes = pulls if "PullRequestList" in query else []
        return {"repository": {"pullRequests": {"nodes": nodes, "totalCount": len(nodes), "pageInfo": {}}}}


class _Handler(BaseHTTPRequestHandler):
    server: GitHubServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.credentials.add(self.headers.get("Authorization", ""))
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"data": self.server.answer(asked["query"], asked.get("variables") or {})}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
