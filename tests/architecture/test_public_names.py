"""What others may rely on: the names that `talaria` and `talaria.testing` list. How-tos need no others, and each of
them is in a how-to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import talaria
from talaria import testing

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
TEXTS = {file.name: file.read_text("utf-8") for file in sorted(HOW_TO.glob("*.md"))}
IMPORT = re.compile(r"\b(?:from|import)\s+`?(talaria(?:\.\w+)*)`?(?:\s+import\s+(?:\(([^)]*)\)|([\w, ]+)))?")
PUBLIC = {"talaria": set(talaria.__all__), "talaria.testing": set(testing.__all__)}


def imports(text: str) -> list[tuple[str, set[str]]]:
    """The modules of ours that a text names as a place to import from, and what of them."""
    return [(module, set(re.findall(r"\w+", some or others))) for module, some, others in IMPORT.findall(text)]


def is_made_there(module: str, text: str) -> bool:
    """Whether the how-to is about a module of that package."""
    return f"`src/{module.rpartition('.')[0].replace('.', '/')}`" in text


@pytest.mark.parametrize("name", TEXTS)
def test_how_to_imports_only_what_is_public(name: str) -> None:
    for module, names in imports(TEXTS[name]):
        if not is_made_there(module, TEXTS[name]):
            assert module in PUBLIC, f"{name} imports {module}: export what it needs from talaria or talaria.testing"
            assert names <= PUBLIC[module]


def test_deeper_path_is_found_wherever_it_stands() -> None:
    text = (
        "`Run` (from `talaria.tools.base`)\n\nfrom talaria import (\n    Agent,\n    tool,\n)\nimport talaria.core.fs\n"
    )
    assert imports(text) == [("talaria.tools.base", set()), ("talaria", {"Agent", "tool"}), ("talaria.core.fs", set())]


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_in_a_how_to(module: str) -> None:
    code = re.findall(r"```.*?```|`[^`\n]+`", "\n".join(TEXTS.values()), re.DOTALL)
    said = set(re.findall(r"\w+", "\n".join(code)))
    assert PUBLIC[module] - {"__version__"} - said == set()


@pytest.mark.parametrize("name", sorted(talaria.__all__))
def test_each_public_name_is_there(name: str) -> None:
    assert hasattr(talaria, name)


def test_names_of_a_platform_do_not_load_the_rest() -> None:
    script = "import sys\nfrom talaria import Address, ContextEngine\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"apsw", "aiohttp", "talaria.app.library", "talaria.store"}.isdisjoint(ended.stdout.split())
