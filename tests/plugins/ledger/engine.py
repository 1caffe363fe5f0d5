import json
import logging
import sqlite3
import threading

from agent.context_engine import ContextEngine

log = logging.getLogger(__name__)


class LedgerEngine(ContextEngine):
    """Holds a connection and a lock, so it can be neither pickled nor deep-copied."""

    keep_last = 4

    def __init__(self):
        self._lock = threading.Lock()
        self._db = None
        self.session_id = None
        self.facts = {}
        self.threshold_percent = 0.5
        self._cursor = 0

    @property
    def name(self):
        return "ledger"

    def _database(self):
        if self._db is None:
            from hermes_cli.config import get_hermes_home

            path = get_hermes_home() / "ledger.db"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(str(path), check_same_thread=False)
            self._db.execute("CREATE TABLE IF NOT EXISTS pages (session TEXT, role TEXT, content TEXT)")
            self._db.execute("CREATE TABLE IF NOT EXISTS events (session TEXT, what TEXT, facts TEXT)")
        return self._db

    def _note(self, what, **facts):
        with self._lock:
            self._database().execute(
                "INSERT INTO events VALUES (?, ?, ?)", (self.session_id, what, json.dumps(facts, default=str))
            )
            self._database().commit()

    def on_session_start(self, session_id, **kwargs):
        self.session_id = session_id
        self.facts = kwargs
        self._cursor = 0 if kwargs.get("boundary_reason") != "compression" else self._cursor
        self._note("start", **kwargs)

    def on_session_end(self, session_id, messages):
        self._note("end", messages=len(messages))

    def on_session_reset(self):
        super().on_session_reset()
        self._cursor = 0
        self._note("reset")

    def update_from_response(self, usage):
        self.last_prompt_tokens = usage.get("prompt_tokens", 0)
        self.last_completion_tokens = usage.get("completion_tokens", 0)
        self.last_total_tokens = usage.get("total_tokens", 0)

    def should_compress(self, prompt_tokens=None):
        tokens = self.last_prompt_tokens if prompt_tokens is None else prompt_tokens
        return bool(self.threshold_tokens) and tokens >= self.threshold_tokens

    def should_compress_preflight(self, messages):
        self._ingest(messages)
        return False

    def _ingest(self, messages):
        with self._lock:
            for message in messages[self._cursor :]:
                self._database().execute(
                    "INSERT INTO pages VALUES (?, ?, ?)",
                    (self.session_id, message["role"], message.get("content") or ""),
                )
            self._database().commit()
            self._cursor = len(messages)

    def compress(self, messages, current_tokens=None, focus_topic=None):
        """Without `force` and `memory_context`, as older engines are."""
        self._ingest(messages)
        if len(messages) <= self.keep_last + 1:
            return messages
        summary = self._summarise(messages[1 : -self.keep_last], focus_topic)
        self.compression_count += 1
        after = [messages[0], {"role": "system", "content": f"[LEDGER] {summary}"}, *messages[-self.keep_last :]]
        self._cursor = len(after)
        return after

    def _summarise(self, messages, focus):
        try:
            from agent.auxiliary_client import call_llm

            text = "\n".join(f"{m['role']}: {m.get('content') or ''}" for m in messages)
            response = call_llm(
                task="compression",
                messages=[{"role": "user", "content": f"Summarise ({focus or 'all'}):\n{text}"}],
                temperature=0.2,
                max_tokens=400,
                timeout=60,
            )
            return response.choices[0].message.content
        except Exception:
            log.exception("no summary")
            return f"{len(messages)} messages"

    def get_tool_schemas(self):
        return [
            {
                "name": "ledger_search",
                "description": "Search the ledger of this conversation.",
                "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
            },
            {
                "name": "ledger_count",
                "description": "How many pages the ledger of this conversation has.",
                "parameters": {"type": "object", "properties": {}},
            },
        ]

    def handle_tool_call(self, name, args, **kwargs):
        self._ingest(kwargs.get("messages") or [])
        with self._lock:
            if name == "ledger_count":
                found = self._database().execute("SELECT count(*) FROM pages WHERE session = ?", (self.session_id,))
                return json.dumps({"pages": found.fetchone()[0]})
            found = self._database().execute(
                "SELECT content FROM pages WHERE session = ? AND content LIKE ?",
                (self.session_id, f"%{args['query']}%"),
            )
            return json.dumps({"found": [row[0] for row in found]})
