from agent.context_engine import ContextEngine


class Engine(ContextEngine):
    name = "plain"

    def update_from_response(self, usage):
        pass

    def should_compress(self, prompt_tokens=None):
        return False

    def compress(self, messages, current_tokens=None):
        return messages


def register(ctx):
    ctx.register_context_engine(Engine())
