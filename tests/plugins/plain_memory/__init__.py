from agent.memory_provider import MemoryProvider


class Memory(MemoryProvider):
    name = "plain"

    def is_available(self):
        return True

    def initialize(self, session_id, **facts):
        pass

    def get_tool_schemas(self):
        return []


def register(ctx):
    ctx.register_memory_provider(Memory())
