"""The plugins of `tests/plugins`: put into a home as they are, or as sources to which a test adds something."""

from pathlib import Path
from shutil import copytree
from textwrap import dedent, indent

PLUGINS = Path(__file__).with_name("plugins")
REGISTER = """

def register(ctx):
    ctx.register_context_engine({engine}())
"""


def source(name: str) -> str:
    return (PLUGINS / name / "__init__.py").read_text("utf-8")


RECORDER = source("recorder").partition("\n\ndef register")[0]
"""The class alone, to derive from or to go on with."""


def engine(name: str, methods: str = "") -> str:
    """A context engine that changes nothing, with these methods."""
    return _with_methods(source("plain_engine").replace('"plain"', repr(name)), methods)


def memory(name: str, methods: str = "") -> str:
    """A memory that keeps nothing, with these methods."""
    return _with_methods(source("plain_memory").replace('"plain"', repr(name)), methods)


def _with_methods(plugin: str, methods: str) -> str:
    before, register, after = plugin.partition("\n\ndef register")
    return f"{before}\n{indent(dedent(methods), '    ')}\n{register}{after}"


def copy_plugin(name: str, home: Path) -> Path:
    return Path(copytree(PLUGINS / name, home / "plugins" / name))


def write_plugin(folder: Path, source: str, *, name: str | None = None, **manifest: str) -> Path:
    folder.mkdir(parents=True)
    fields = {"name": name or folder.name, "version": "1", **manifest}
    (folder / "plugin.yaml").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    (folder / "__init__.py").write_text(dedent(source))
    return folder
