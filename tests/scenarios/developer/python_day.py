"""Python: a virtual environment outside of the project, pytest, a package from a registry, pre-commit."""

import os
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from tests.scenarios.developer.day import PATH, Day
from tests.scenarios.developer.registries import HOST, Registry, a_registry, packed_wheel, plain_wheel

from talaria.tools.sandbox.system import PYTHON

TOOLS = {"pytest": "pytest", "pre_commit": "pre-commit", "pip": "pip"}
"""Programs of the environment, by their modules, with their distributions."""
PROJECT = {
    "greeting.py": "import salutation\n\n\ndef greet(name):\n    return f'{salutation.WORD}, {name}'\n",
    "test_greeting.py": (
        "import greeting\n\n\ndef test_greeting(tmp_path):\n    (tmp_path / 'said').write_text(greeting.greet('Ada'))\n"
        "    assert (tmp_path / 'said').read_text() == 'Hello, Ada'\n"
    ),
    "look.py": "import sys\n\nsys.exit(any('\\t' in open(name).read() for name in sys.argv[1:]))\n",
    ".pre-commit-config.yaml": (
        "repos:\n- repo: local\n  hooks:\n  - {id: tabs, name: no tabs, language: python, entry: python look.py, "
        "types: [python]}\n"
    ),
}


async def spend(day: Day) -> None:
    with a_registry(HOST if day.has_network else "127.0.0.1") as registry:
        registry.add_wheel(*plain_wheel("salutation", "WORD = 'Hello'\n"))
        registry.add_wheel(*packed_wheel("setuptools"))
        await _spend(day, registry)


async def _spend(day: Day, registry: Registry) -> None:
    venv = _make_venv(day.person / ".venvs/shop")
    day.write(PROJECT)
    for command in ("git init -q -b main", f"{venv}/bin/pre-commit install", "git add .", "git commit -qnm one"):
        day.outside(command)
    os.environ.update(VIRTUAL_ENV=str(venv), PATH=f"{venv}/bin:{PATH}")
    env = _set_index(day, registry)
    await day.begin(env=env)
    assert "No module named 'salutation'" in await day.fail("pytest -q")
    if day.has_network:
        refused = await day.fail("pip install salutation")
        assert f'needs: ["write {venv}' in refused, refused
        await day.run("pip install salutation", needs=[f"write {venv}"])
        day.was_asked(
            f"Let commands reach {HOST}?",
            f"Let commands read, change and delete everything in {venv}?",
        )
    else:
        refused = await day.fail(f"pip install --retries 1 --index-url {registry.url}/simple salutation")
        assert "no network at the landlock level" in refused, refused
        await day.run(f"pip install --index-url {registry.url}/simple salutation", needs=["unsandboxed"])
        day.was_asked("Run this command outside the sandbox, with your rights: your files, keys and network?")
    assert [*venv.glob("lib/python3*/site-packages/salutation.py")], "what pip reports as installed is there"
    assert "1 passed" in await day.run("pytest -q")
    first = await day.run("pre-commit run --all-files")
    assert "Installing environment" in first, first
    fetched = len(registry.asked)
    await day.end()

    await day.begin(env=env)
    assert "1 passed" in await day.run("pytest -q")
    (day.project / "more.py").write_text("if True:\n\tpass\n")
    refused = await day.fail("git add more.py && git commit -m more")
    assert "no tabs" in refused
    assert "Failed" in refused
    await day.run("sed -i 's/\\t/    /' more.py && git commit -qam more")
    again = await day.run("pre-commit run --all-files")
    assert "Installing environment" not in again, "the cache of hooks lasts"
    assert len(registry.asked) == fetched
    await day.end()
    assert day.outside("git log --format=%s") == "more\none\n"
    assert (day.project / "more.py").read_text() == "if True:\n    pass\n"
    assert not (day.person / ".cache/pip").exists(), "the person's own caches are not touched"
    day.was_asked()


def _make_venv(venv: Path) -> Path:
    """By hand, and quickly: what pip would unpack is copied."""
    subprocess.run((PYTHON, "-m", "venv", "--without-pip", str(venv)), check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    for name in _with_dependencies(*TOOLS.values()):
        for file in distribution(name).files or ():
            source, target = Path(str(file.locate())), packages / file
            if ".." not in file.parts and source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)  # with its time, for what is compiled already
    for program in TOOLS:
        script = venv / "bin" / program.replace("_", "-")
        script.write_text(f"#!{venv}/bin/python\nimport runpy, sys\nsys.argv[0] = {str(script)!r}\n")
        with script.open("a") as written:
            written.write(f"runpy.run_module({program!r}, run_name='__main__')\n")
        script.chmod(0o755)
    return venv


def _with_dependencies(*names: str) -> list[str]:
    found = dict.fromkeys(names)
    waiting = [*names]
    for name in waiting:
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and needed.name not in found:
                found[needed.name] = None
                waiting.append(needed.name)
    return [*found]


def _set_index(day: Day, registry: Registry) -> tuple[str, ...]:
    """Where no command reaches a registry, what hooks need is in a folder of the project."""
    os.environ.update(VIRTUALENV_NO_PERIODIC_UPDATE="1")  # else it asks pypi.org for news of pip
    if day.has_network:
        os.environ.update(PIP_INDEX_URL=f"{registry.url}/simple", PIP_TRUSTED_HOST=HOST)
        return ("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "VIRTUALENV_NO_PERIODIC_UPDATE")
    vendored = day.project / "vendor"
    vendored.mkdir()
    name, content = packed_wheel("setuptools")
    (vendored / name).write_bytes(content)
    (day.project / ".git/info/exclude").write_text("vendor\n")
    os.environ.update(PIP_FIND_LINKS=str(vendored))
    return ("PIP_FIND_LINKS", "VIRTUALENV_NO_PERIODIC_UPDATE")
