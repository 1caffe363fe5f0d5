"""The profile judged as macOS would: by the last rule that fits. Only there can it be tried for real."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from talaria.tools.sandbox import seatbelt
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.chooser import best_of_macos
from talaria.tools.sandbox.seatbelt import profile, quote

Form = str | list["Form"]

PROJECT = Path('/Users/ann/a "b" \\ (c)/work')
SCRATCH = Path("/private/var/folders/x/T/talaria-1")
VIEW = SandboxPolicy(
    project=PROJECT,
    home=Path("/Users/ann"),
    writes=(Path("/Users/ann/more"),),
    reads=(Path("/Users/ann/.cargo/bin"),),
    guarded=(PROJECT / ".git/hooks",),
    hidden=(PROJECT / "deep/secrets",),
)


def forms(text: str) -> list[Form]:
    """Raises where the text is not whole."""
    stack: list[list[Form]] = [[]]
    for token in tokens(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    (whole,) = stack
    return whole


def tokens(text: str) -> Iterator[str]:
    """A string stands without its quotes, and after an apostrophe; so no path is taken for a word."""
    at = 0
    token = re.compile(r'\s*(?:([()])|#?"((?:[^"\\]|\\.)*)"|([^\s()"]+))\s*', re.DOTALL)
    while at < len(text):
        found = token.match(text, at)
        assert found, f"no token at {text[at : at + 20]!r}"
        bracket, string, word = found.groups()
        yield bracket or word or "'" + re.sub(r"\\(.)", r"\1", string)
        at = found.end()


class Judge:
    def __init__(self, text: str) -> None:
        self._rules = [form for form in forms(text) if isinstance(form, list) and form[0] in ("allow", "deny")]

    def allows(self, operation: str, what: object = "") -> bool:
        verdict = False
        for rule in self._rules:
            names = [word for word in rule[1:] if isinstance(word, str)]
            filters = [form for form in rule[1:] if isinstance(form, list)]
            is_named = any(fnmatchcase(operation, name) or name == "default" for name in names)
            if is_named and (not filters or any(fits(form, str(what)) for form in filters)):
                verdict = rule[0] == "allow"
        return verdict


def fits(filter: list[Form], what: str) -> bool:
    kind, *values = filter
    match kind, values:
        case "require-all", _:
            return all(fits(form, what) for form in values if isinstance(form, list))
        case "remote", [str(), str(value)]:
            return what == value[1:]
        case "regex", [str(value)]:
            return re.search(value[1:], what) is not None
        case "subpath", [str(value)]:
            return Path(what).is_relative_to(value[1:])
        case "sysctl-name-prefix", [str(value)]:
            return what.startswith(value[1:])
        case (("literal" | "sysctl-name" | "global-name" | "target"), [str(value)]):
            return what == value.removeprefix("'")
        case _:
            return False


@pytest.fixture
def judge() -> Judge:
    return Judge(profile(VIEW, SCRATCH, None))


@pytest.mark.parametrize("text", ["/plain", 'a "b"', "back\\slash", "\\", '\\"', "two\nlines", "(a) ; b #t"])
def test_quoted_text_is_read_as_it_was(text: str) -> None:
    assert forms(f"(literal {quote(text)})") == [["literal", f"'{text}"]]


def test_first_of_all_everything_is_denied() -> None:
    assert forms(profile(VIEW, SCRATCH, None))[:2] == [["version", "1"], ["deny", "default"]]


@pytest.mark.parametrize("path", [PROJECT / "x", "/Users/ann/more/x", SCRATCH / "tmp/x"])
def test_what_is_theirs_is_written(judge: Judge, path: Path) -> None:
    for operation in ("file-read-data", "file-write-data", "file-write-create", "file-write-unlink"):
        assert judge.allows(operation, path)


@pytest.mark.parametrize("path", ["/usr/bin/env", "/System/Library/x", "/Users/ann/.cargo/bin/x", "/private/etc/hosts"])
def test_what_is_shown_is_only_read(judge: Judge, path: str) -> None:
    assert judge.allows("file-read-data", path)
    assert not judge.allows("file-write-data", path)


@pytest.mark.parametrize("path", ["/Users/ann/.ssh/id", "/Users/bob/x", "/private/tmp/x", "/private/etc/master.passwd"])
def test_the_rest_is_not_there(judge: Judge, path: str) -> None:
    for operation in ("file-read-data", "file-read-metadata", "file-write-create"):
        assert not judge.allows(operation, path)


def test_guarded_is_read_and_neither_written_nor_moved_nor_linked(judge: Judge) -> None:
    hooks = PROJECT / ".git/hooks"
    assert judge.allows("file-read-data", hooks / "x")
    for path in (hooks, hooks / "x"):
        assert not judge.allows("file-write-create", path)
        assert not judge.allows("file-write-unlink", path)
    assert not judge.allows("file-write-unlink", PROJECT / ".git")
    assert not judge.allows("file-write-unlink", PROJECT)
    assert not judge.allows("file-link", PROJECT / "x")
    assert judge.allows("file-write-create", PROJECT / ".git/index")


def test_hidden_is_neither_read_nor_moved_to_where_it_can_be(judge: Judge) -> None:
    secrets = PROJECT / "deep/secrets"
    for operation in ("file-read-data", "file-read-metadata", "file-test-existence", "file-write-unlink"):
        assert not judge.allows(operation, secrets)
        assert not judge.allows(operation, secrets / "key")
    assert not judge.allows("file-write-unlink", PROJECT / "deep")
    assert judge.allows("file-write-unlink", PROJECT / "deep/other")


def test_folders_above_can_be_passed_but_not_listed(judge: Judge) -> None:
    assert judge.allows("file-read-metadata", "/Users/ann")
    assert not judge.allows("file-read-data", "/Users/ann")


def test_other_processes_are_out_of_reach(judge: Judge) -> None:
    assert judge.allows("signal", "same-sandbox")
    assert not judge.allows("signal", "others")
    assert not judge.allows("process-info-pidinfo", "others")
    assert judge.allows("sysctl-read", "hw.ncpu")
    assert not judge.allows("sysctl-read", "kern.procargs2")
    assert not judge.allows("mach-lookup", "com.apple.securityd")


def test_network_is_only_the_way_out_that_was_made() -> None:
    assert not Judge(profile(VIEW, SCRATCH, None)).allows("network-outbound", "localhost:4711")
    judge = Judge(profile(VIEW, SCRATCH, 4711))
    assert judge.allows("network-outbound", "localhost:4711")
    for operation, address in (("network-outbound", "localhost:22"), ("network-bind", ""), ("network-inbound", "")):
        assert not judge.allows(operation, address)


def test_view_with_nothing_to_guard_makes_no_rule_for_everything() -> None:
    judge = Judge(profile(SandboxPolicy(project=PROJECT, home=Path("/Users/ann")), SCRATCH, None))
    assert judge.allows("file-write-unlink", PROJECT / "x")
    assert judge.allows("file-read-data", PROJECT / "x")


def test_where_it_does_not_work_commands_are_not_shut_in_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seatbelt, "SANDBOX_EXEC", "/nowhere/sandbox-exec")
    sandbox = best_of_macos()
    assert sandbox.level == "none"
    assert sandbox.about == "no sandbox: seatbelt does not work (/nowhere/sandbox-exec does not exist)"
