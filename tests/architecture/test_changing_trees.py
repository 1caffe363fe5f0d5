"""Whatever works outside the sandbox in folders that commands can change does so through `talaria.core.trees`
only: a path that was looked at may lead elsewhere by the time it is used.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import talaria

SOURCE = Path(talaria.__file__).parent
ELSEWHERE = {
    "runs inside the sandbox, or builds it from within": (
        "arrival",
        "command_loop",
        "confining",
        "connection_notes",
        "descendants",
        "landlock",
        "metadata",
        "minder",
        "program",
        "script",
        "seccomp",
        "shell",
    ),
    "is the way itself": (
        "core/fs",
        "core/trees",
    ),
    "works in Talaria's own home, where no command can write": (
        "cli/backup/backup",
        "cli/backup/archive",
        "cli/backup/forget",
        "cli/backup/restore",
        "cli/command_tree",
        "cli/completion/values",
        "cli/context",
        "cli/first_run/setup",
        "cli/gateway/daemon",
        "cli/gateway/gateway_commands",
        "cli/gateway/log",
        "cli/health/checks",
        "cli/plugins",
        "cli/profiles",
        "compat/hermes/aliases/hermes_gateway",
        "compat/hermes/aliases/hermes_cli_config",
        "compat/hermes/aliases/hermes_state",
        "compat/hermes/moving_in",
        "compat/hermes/platforms/adapted",
        "compat/hermes/platforms/incoming_events",
        "compat/hermes/plugin_home",
        "compat/hermes_home/conversation_import",
        "config/edit",
        "config/lenient",
        "config/load",
        "config/paths",
        "config/project_settings",
        "config/secrets",
        "gateway/claims",
        "gateway/gateway_status",
        "runtime/live_socket",
        "api/file_links",
        "api/sent_content",
        "app/gateway_app",
        "app/session_files",
        "app/listed_servers",
        "platforms/matrix/matrix_client",
        "platforms/matrix/platform",
        "platforms/matrix/rooms",
        "plugins/api",
        "plugins/plugin_host",
        "plugins/discovery",
        "plugins/session_hooks",
        "store/sqlite/database",
        "store/sqlite/presence",
        "store/sqlite/search",
        "store/sqlite/undo",
        "tools/browser/browser_process",
        "tools/builtin/planning",
        "tools/mcp/offers",
    ),
    "reads copies that we have made in our home, to send them": (
        "platforms/http_sessions",
        "platforms/telegram/platform",
    ),
    "reads files of the program itself": (
        "cli/sessions/page",
        "platforms/loader",
        "providers/catalog",
        "store/sqlite/connection",
        "tools/builtin/code",
        "tools/sandbox/launching",
        "tools/sandbox/project_reader",
    ),
    "uses paths that the person types, once": (
        "cli/config_command",
        "cli/conversation",
        "cli/gateway/send",
        "cli/importing",
        "cli/main",
        "cli/mcp",
        "cli/sessions/export",
        "app/build",
        "app/extensions",
    ),
    "what counts is the copy that `plugins/plugin_host.py` makes; this looks what is there": (
        "plugins/consent",
        "plugins/installing",
    ),
    "names what is there; `compat/hermes_home/home_files.py` takes it, and the person sees each name and setting": (
        "compat/hermes_home/hermes_database",
        "compat/hermes_home/takeover",
        "compat/hermes_home/home_files",
    ),
    "only names a place, for the gate or for a mount; whoever opens it follows no link": (
        "tools/base",
        "tools/builtin/terminal",
        "tools/command_results",
        "tools/sandbox_consent",
        "tools/function",
        "tools/policy",
        "tools/protected",
        "tools/sandbox/bubblewrap",
        "tools/sandbox/docker",
        "tools/sandbox/local",
        "tools/sandbox/sandbox_policy",
        "tools/sandbox/sandbox_settings",
        "tools/sandbox/toolchains",
        "tools/sandbox_permissions",
        "tools/shell_words",
    ),
    "shows names to the person who types": ("cli/screen/line_input",),
    "the folder that the settings name for chats": ("gateway/conversations",),
    "programs of MCP servers, which the person has chosen; a file in the project counts as its content was agreed to": (
        "tools/mcp/project_servers",
        "tools/mcp/sandboxing",
        "tools/mcp/server_entries",
        "tools/mcp/transports",
        "tools/mcp/warden",
    ),
    "looks at the system, which commands cannot change": (
        "tools/sandbox/resource_limits",
        "tools/sandbox/seatbelt",
        "tools/sandbox/system",
    ),
    "makes the folders that it works in": (
        "cli/health/escapes/canaries",
        "cli/health/escapes/escape_trial",
        "cli/health/escapes/intruder",
        "cli/health/security",
    ),
    "opens no file: a session, a chat, a page, a stream": (
        "cli/command_name",
        "cli/notices",
        "cli/plain",
        "cli/screen/painting",
        "cli/sessions/session_commands",
        "gateway/chat_commands",
        "gateway/dispatcher",
        "gateway/gateway_state",
        "gateway/handoffs",
        "gateway/service",
        "runtime/builtin_commands",
        "runtime/session_services",
        "tools/builtin/web_pages",
        "tools/executor",
        "tools/mcp/servers",
    ),
}
"""Why a module may use paths, and which do."""
HOST = "tools/sandbox/host"
ALLOWED = {
    ("__init__.py", "files.replace_file"): "only exported",
    ("api/api_conversations.py", ".rename"): "in the store",
    ("api/api_platform.py", ".write_bytes"): "a folder that was made for this one file",
    ("api/api_requests.py", ".open"): "a conversation",
    ("cli/references.py", ".resolve"): "a path that the person names outside of the folder they work in",
    ("cli/references.py", ".expanduser"): "looks at no file",
    ("cli/references.py", "io"): "the type of standard input",
    ("gateway/retention.py", ".expanduser"): "looks at no file",
    ("gateway/replies.py", ".expanduser"): "looks at no file",
    ("gateway/replies.py", ".resolve"): "Talaria's own home",
    ("gateway/replies.py", "io"): "bytes in memory",
    ("runtime/prompt.py", "files.read_text"): "SOUL.md in Talaria's own home",
    ("tools/builtin/search_tools.py", ".stat"): "the private places themselves, to know them again",
    ("tools/broker/inside_program.py", "open"): "runs inside the sandbox",
    ("tools/broker/inside_program.py", "os.open"): "runs inside the sandbox",
    ("tools/broker/inside_program.py", "os.getcwd"): "runs inside the sandbox",
    ("tools/broker/broker.py", "shutil"): "looks for gh where commands cannot put one",
    ("tools/broker/broker.py", ".expanduser"): "looks at no file",
    ("tools/broker/broker.py", ".resolve"): "says where links of the person lead, and opens nothing",
    ("tools/broker/commit_signing.py", ".expanduser"): "looks at no file",
    ("tools/broker/commit_signing.py", ".write_text"): "a folder that was made for this one file",
    ("tools/git_program.py", "shutil"): "looks for git where the system has its programs",
    ("tools/git_program.py", ".expanduser"): "looks at no file",
    ("tools/git_settings.py", "shutil"): "looks for gh where the system has its programs",
    ("tools/git_settings.py", ".expanduser"): "looks at no file",
    ("tools/git_settings.py", ".lstat"): "only tells whether a file was changed; it is then read through trees",
    ("tools/python_deletions.py", ".walk"): "through a syntax tree",
    ("tools/repositories.py", ".expanduser"): "looks at no file",
    **{
        ("tools/repositories.py", f".{name}"): "above the project, or of a repository that must name its work tree"
        for name in ("stat", "lstat", "is_file")
    },
    **{
        ("tools/sandbox/guard_program.py", f"os.{name}"): "in /proc, or below a descriptor that no link led to"
        for name in ("open", "mkdir", "path.split", "readlink", "listdir", "scandir", "stat")
    },
    ("tools/sandbox/guard_program.py", ".stat"): "of what was listed, without following it",
    ("tools/sandbox/guarding.py", ".read_bytes"): "/proc",
    ("tools/sandbox/port_program.py", "os.open"): "/proc",
    ("tools/sandbox/guarding.py", ".read_text"): "/proc",
    ("tools/sandbox/inside.py", ".read_text"): "/proc/net/unix",
    ("tools/repositories.py", ".resolve"): "names a place that is then opened without following links",
    ("tools/undo/project_record.py", ".stat"): "Talaria's own home, to know it again",
    ("tools/undo/project_record.py", ".read_text"): "/proc",
    ("tools/undo/change_recorder.py", ".exists"): "a file in Talaria's own home",
    ("tools/undo/change_recorder.py", ".resolve"): "the home of the person",
    ("tools/undo/restore_files.py", "os.path.samestat"): "compares what is known",
    **{
        ("tools/undo/scan.py", f"os.{name}"): "from one descriptor to the next, without following links"
        for name in ("open", "scandir", "stat")
    },
    ("tools/undo/scan.py", ".stat"): "of what was listed, without following it",
    ("tools/workspace.py", ".open"): "the sandbox, not a file",
    ("tools/workspaces.py", ".resolve"): "the project's own path, the home's, and what the settings name",
    ("tools/workspaces.py", ".expanduser"): "looks at no file",
}
"""What is left, and why that is no danger."""

OF_PATHS = frozenset(
    (
        *("absolute", "chmod", "exists", "expanduser", "glob", "hardlink_to", "is_block_device", "is_dir"),
        *("is_char_device", "is_fifo", "is_file", "is_mount", "is_socket", "is_symlink", "iterdir", "lchmod", "lstat"),
        *("mkdir", "open", "read_bytes", "read_text", "readlink", "rename", "resolve", "rglob", "rmdir"),
        *("samefile", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text"),
    )
)
"""Methods of `Path`. Those of `Root` have other names."""
OF_OS = frozenset(
    (
        *("close", "dup", "dup2", "fchmod", "fdopen", "fstat", "fsencode", "fsdecode", "fspath", "fsync", "ftruncate"),
        *("lseek", "memfd_create", "pipe", "pread", "pwrite", "read", "set_blocking", "set_inheritable", "write"),
        *("getegid", "geteuid", "getgid", "getpid", "getuid", "kill", "killpg", "register_at_fork", "urandom"),
        *("curdir", "defpath", "devnull", "environ", "environb", "get_terminal_size", "path", "pathsep", "strerror"),
        *("PathLike", "stat_result", "pidfd_open", "fstatvfs", "fork", "_exit", "waitpid"),
    )
)
"""What of `os` takes no path."""
OF_FILES = frozenset(("read_bytes", "read_text", "replace_file"))
PURE = frozenset(("join", "normpath", "dirname", "basename", "relpath"))
OTHERS = frozenset(("os.path", "shutil", "glob", "io"))
"""Modules that work with paths."""


SUSPICIOUS = re.compile(
    rf"\bopen\b|\b(?:os|shutil|glob|io|talaria\.core\.fs)\b|\.(?:replace|walk|{'|'.join(OF_PATHS)})\b"
)
"""What has none of these words needs no closer look."""


def uses(code: str) -> Iterator[tuple[int, str]]:
    """Of paths, by line."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.ImportFrom(module="talaria.core.fs"):
                yield from ((node.lineno, f"files.{one.name}") for one in node.names if one.name in OF_FILES)
            case ast.ImportFrom(module=str(module)) if module in (*OTHERS, "os"):
                yield node.lineno, module
            case ast.Import():
                yield from ((node.lineno, one.name) for one in node.names if one.name in OTHERS)
            case ast.Name("open"):
                yield node.lineno, "open"
            case ast.Call(func=ast.Attribute(attr="replace"), args=[_], keywords=[]):
                yield node.lineno, ".replace"  # of a str it takes two, of a struct keywords
            case ast.Attribute(ast.Name("os"), name) if name not in OF_OS and not name.isupper():
                yield node.lineno, f"os.{name}"
            case ast.Attribute(ast.Attribute(ast.Name("os"), "path"), name) if name not in PURE:
                yield node.lineno, f"os.path.{name}"
            case ast.Attribute(ast.Name("Root"), "open"):
                pass
            case ast.Call(func=ast.Attribute(_, "walk")) | ast.Attribute(ast.Name("Path"), "walk"):
                yield node.lineno, ".walk"
            case ast.Attribute(_, name) if name in OF_PATHS:
                yield node.lineno, f".{name}"
            case _:
                pass


@cache
def found() -> dict[str, list[tuple[int, str]]]:
    """The uses of paths in each module of the product."""
    files = (file for file in SOURCE.rglob("*.py") if "testing" not in file.parts[-3:])
    texts = {str(file.relative_to(SOURCE)): file.read_text("utf-8") for file in files}
    return {module: list(uses(text)) if SUSPICIOUS.search(text) else [] for module, text in texts.items()}


def exempt() -> dict[str, str]:
    inside, *others = ELSEWHERE.items()
    named = {f"{HOST}/{name}.py": inside[0] for name in inside[1]}
    return named | {f"{name}.py": reason for reason, names in others for name in names}


def test_no_module_that_works_in_changing_trees_uses_paths() -> None:
    free = exempt()
    bad = {
        module: left
        for module, all_of_it in found().items()
        if module not in free and (left := [(line, use) for line, use in all_of_it if (module, use) not in ALLOWED])
    }
    assert bad == {}, "go through talaria.core.trees, or say here why this is no danger"


def test_every_exception_is_in_use() -> None:
    assert {module for module in exempt() if not found().get(module)} == set()
    assert set(ALLOWED) <= {(module, use) for module, all_of_it in found().items() for _, use in all_of_it}
    assert sum(map(len, ELSEWHERE.values())) == len(exempt())  # nobody is named twice


FORBIDDEN = """
path.resolve() | Path(x).open('rb') | open(x) | path.exists() | [*path.iterdir()] | path.rglob('*') | path.read_text()
path.unlink(missing_ok=True) | path.rename(x) | path.replace(x) | path.stat() | a().stat() | self._folder.mkdir()
os.open(path, os.O_RDONLY) | os.path.realpath(x) | os.path.exists(x) | os.scandir(x) | os.walk(x) | x = os.listdir
import shutil | from os.path import exists | from os import open as o | from talaria.core.fs import read_text
map(Path.resolve, paths)
"""
HARMLESS = """
Root.open(path) | root.read('x', 1) | text.replace('a', 'b') | structs.replace(x, a=1) | os.fstat(3)
"""


@pytest.mark.parametrize("line", FORBIDDEN.strip().replace("\n", " | ").split(" | "))
def test_what_is_forbidden_is_found(line: str) -> None:
    """Else the test above would show nothing."""
    assert SUSPICIOUS.search(line)
    assert [*uses(line)]


@pytest.mark.parametrize("line", HARMLESS.strip().split(" | "))
def test_what_is_harmless_is_not_found(line: str) -> None:
    assert not [*uses(line)]
