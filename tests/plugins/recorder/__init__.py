import json
import os

from agent.context_engine import ContextEngine


class Recorder(ContextEngine):
    """Writes down what it is called with."""

    name = "recorder"

    def _note(self, what, *args, **facts):
        with open(os.path.join(os.environ["HERMES_HOME"], "calls.jsonl"), "a") as file:
            file.write(json.dumps([what, list(args), facts, id(self)], default=str) + "\n")

    def update_from_response(self, usage):
        self._note("usage", **usage)

    def should_compress(self, prompt_tokens=None):
        self._note("should", prompt_tokens)
        return False

    def should_compress_preflight(self, messages):
        self._note("preflight", [message["role"] for message in messages])
        return False

    def compress(self, messages, current_tokens=None, focus_topic=None, force=False, memory_context=""):
        self._note("compress", focus_topic=focus_topic, force=force)
        kept = messages[-1:] if messages[-1]["role"] == "user" else messages[-2:]
        return [{"role": "user", "content": "[SUMMARY]"}, *kept]

    def update_model(self, model, context_length, base_url="", api_key="", provider="", api_mode=""):
        self._note("model", model, context_length, api_key=api_key)

    def on_session_start(self, session_id, **facts):
        self._note("start", session_id, **facts)

    def on_session_end(self, session_id, messages):
        self._note("end", session_id, messages=len(messages))

    def on_session_reset(self):
        self._note("reset")

    def carry_over_new_session_context(self, old, new):
        self._note("carry", old, new)


def register(ctx):
    ctx.register_context_engine(Recorder())
