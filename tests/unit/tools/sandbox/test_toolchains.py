"""Which toolchains of the person commands see."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.security.swapping import swapping

from talaria.tools.protected import Protected
from talaria.tools.sandbox.base import Bind
from talaria.tools.sandbox.toolchains import Toolchains, find_toolchains


@pytest.fixture
def person(tmp_path: Path) -> Path:
    (tmp_path / "person/project").mkdir(parents=True)
    return tmp_path / "person"


def find(person: Path, environment: Mapping[str, str] | None = None) -> Toolchains:
    protected = Protected(person, person / ".talaria")
    return find_toolchains(environment or {}, person, (person / "project", Path("/usr")), protected)


def made(folder: Path, *names: str) -> Path:
    """With these files in it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def python(folder: Path) -> Path:
    return made(folder, "bin/python3", "lib/python3.12/os.py")


def venv(folder: Path, home: Path | str) -> Path:
    made(folder, "pyvenv.cfg", "bin/activate")
    (folder / "pyvenv.cfg").write_text(f"version = 3.12\nhome = {home}\n")
    return folder


@pytest.mark.parametrize(
    ("variable", "files", "shown"),
    [
        ("VIRTUAL_ENV", ["pyvenv.cfg"], [""]),
        ("CONDA_PREFIX", ["conda-meta/history"], [""]),
        ("PYENV_ROOT", ["versions/3.12/bin/python3", "shims/python3", "cache/x"], ["shims", "versions"]),
        ("NVM_DIR", ["versions/node/v22/bin/node", ".cache/x"], ["versions"]),
        ("FNM_DIR", ["node-versions/v22/installation/bin/node"], ["node-versions"]),
        ("VOLTA_HOME", ["bin/node", "tools/image/x", "log/x"], ["bin", "tools"]),
        ("RUSTUP_HOME", ["toolchains/stable/bin/rustc", "settings.toml", "tmp/x"], ["settings.toml", "toolchains"]),
        ("CARGO_HOME", ["bin/cargo", "credentials.toml", "registry/x"], ["bin"]),
        ("GOROOT", ["bin/go"], [""]),
        ("GOPATH", ["bin/gopls", "pkg/x"], ["bin"]),
        ("JAVA_HOME", ["bin/java"], [""]),
        ("SDKMAN_DIR", ["candidates/java/21/bin/java", "etc/config"], ["candidates"]),
    ],
)
def test_each_is_found_by_its_variable(person: Path, variable: str, files: list[str], shown: list[str]) -> None:
    folder = made(person / "tools/it", *files)
    found = find(person, {variable: str(folder)})
    assert found.reads == tuple(folder / name if name else folder for name in shown)
    assert found.variables.get(variable) in (str(folder), None if variable in ("CARGO_HOME", "GOPATH") else "")


def test_usual_places_are_found_without_a_variable(person: Path) -> None:
    made(person, ".pyenv/versions/3.12/x", ".rustup/toolchains/x", ".cargo/bin/cargo", ".cargo/credentials.toml")
    made(person, "sdk/go1.22/bin/go", "sdk/other/bin/x")
    found = find(person)
    places = (".pyenv/versions", ".rustup/toolchains", ".cargo/bin", "sdk/go1.22")
    assert found.reads == tuple(person / name for name in places)
    assert found.variables == {"PYENV_ROOT": f"{person}/.pyenv", "RUSTUP_HOME": f"{person}/.rustup"}


def test_the_python_of_a_virtual_environment_is_shown_too(person: Path) -> None:
    base = python(person / "pythons/3.12")
    outside = venv(person / "venvs/shop", base / "bin")
    assert find(person, {"VIRTUAL_ENV": str(outside)}).reads == (outside, base)
    venv(person / "project/.venv", base / "bin")
    assert find(person).reads == (base,)


def test_a_python_that_is_named_by_a_link_is_there_by_that_name(person: Path) -> None:
    base = python(person / "pythons/3.12.4")
    (person / "pythons/3.12").symlink_to(base)
    venv(person / "project/.venv", person / "pythons/3.12/bin")
    found = find(person)
    assert (found.reads, found.binds) == ((base,), (Bind(base, person / "pythons/3.12"),))


@pytest.mark.parametrize(
    "home", ["/", "/bin", "{person}/.ssh", "{person}/letters/bin", "{person}/bin", "/proc/self/root/bin", "x/bin", ""]
)
def test_a_pyvenv_cfg_that_a_command_wrote_shows_nothing(person: Path, home: str) -> None:
    made(person, ".ssh/id_ed25519", "letters/bin/python3", "bin/python3", "lib/python3.12/os.py")
    venv(person / "project/.venv", home.format(person=person))
    assert find(person) == Toolchains(path=find(person).path)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", "GOROOT", "JAVA_HOME"])
@pytest.mark.parametrize("place", ["", ".ssh", ".local", ".config", ".cache", ".cargo", ".m2", ".talaria", "letters"])
def test_private_folders_are_not_taken_for_toolchains(person: Path, variable: str, place: str) -> None:
    folder = made(person / place, "x")
    if place != "letters":  # that one does not look like any
        made(folder, "pyvenv.cfg", "conda-meta/history", "bin/go", "bin/java")
    found = find(person, {variable: str(folder)})
    assert (folder in found.reads, found.variables) == (False, {})


def test_links_to_private_places_show_nothing(person: Path) -> None:
    made(person, ".ssh/pyvenv.cfg", ".ssh/versions/x", ".config/gh/versions/x")
    (person / "venv").symlink_to(person / ".ssh")
    (person / ".pyenv").symlink_to(person / ".ssh")
    made(person, ".rustup/x", "toolchains/x")
    (person / ".rustup/toolchains").symlink_to(person)
    (person / ".nvm").symlink_to(person / ".config/gh")
    found = find(person, {"VIRTUAL_ENV": str(person / "venv"), "NVM_DIR": str(person / ".nvm")})
    assert (found.reads, found.variables) == ((), {})


def test_what_everybody_can_change_is_not_shown(person: Path) -> None:
    folder = made(person / "jdk", "bin/java")
    folder.chmod(0o777)
    assert find(person, {"JAVA_HOME": str(folder)}).reads == ()


def test_the_path_keeps_its_order_and_leads_past_links(person: Path) -> None:
    node = made(person / "fnm", "node-versions/v22/bin/node") / "node-versions/v22/bin"
    (person / "shell").symlink_to(node)
    path = f"/usr/local/bin:{person}/shell:relative:/usr/bin:{person}/elsewhere"
    found = find(person, {"FNM_DIR": str(person / "fnm"), "PATH": path})
    assert found.path == f"/usr/local/bin:{node}:relative:/usr/bin:{person}/elsewhere"


def test_a_python_that_becomes_a_link_to_a_private_folder_meanwhile_does_not_show_it(person: Path) -> None:
    """Commands of another session could write there."""
    fake, private = python(person / "other/fake"), person / "private"
    private.mkdir()
    venv(person / "project/.venv", fake / "bin")
    shown: set[Path] = set()
    with swapping(fake, private):
        for _ in range(100):
            shown.update(find(person).reads)
    assert private not in shown
    assert fake in shown
