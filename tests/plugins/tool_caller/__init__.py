def register(ctx):
    ctx.register_tool("helper", "set", {"parameters": {"type": "object"}}, lambda args: ctx.dispatch_tool(**args))
