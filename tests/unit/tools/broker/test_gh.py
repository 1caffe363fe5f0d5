"""`gh` runs outside the sandbox for one repository, reads no file and starts nothing."""

import pytest

from talaria.tools.broker.gh import GhRefused, check_gh

SHOP = "github.com/o/shop"


def words(command: str) -> list[str]:
    return command.split(" ")


@pytest.mark.parametrize(
    ("command", "run", "is_reading"),
    [
        ("pr list", "pr list --repo github.com/o/shop", True),
        ("pr view 12 --comments", "pr view --repo github.com/o/shop 12 --comments", True),
        ("issue list --repo o/shop -L 3", "issue list --repo github.com/o/shop -L 3", True),
        ("run view 5 --log-failed", "run view --repo github.com/o/shop 5 --log-failed", True),
        ("issue comment 3 --body=hello", "issue comment --repo github.com/o/shop 3 --body=hello", False),
        ("pr create --title T --body B", "pr create --repo github.com/o/shop --head topic --title T --body B", False),
        ("repo view --json name", "repo view github.com/o/shop --json name", True),
        (
            "pr list --json number --jq .[].environment",
            "pr list --repo github.com/o/shop --json number --jq .[].environment",
            True,
        ),
        (
            "issue list --label kind:bug --author ada",
            "issue list --repo github.com/o/shop --label kind:bug --author ada",
            True,
        ),
        (
            "issue comment 3 --body=https://x.example",
            "issue comment --repo github.com/o/shop 3 --body=https://x.example",
            False,
        ),
        ("pr create --head x --title T", "pr create --repo github.com/o/shop --head x --title T", False),
    ],
)
def test_what_is_about_the_repository_runs_there(command: str, run: str, is_reading: bool) -> None:
    call = check_gh(words(command), SHOP, "topic", has_text=False)
    assert (" ".join(call.words), call.is_reading) == (run, is_reading)


def test_a_text_comes_by_standard_input() -> None:
    assert check_gh(words("issue create --title T"), SHOP, "", has_text=True).words == (
        *("issue", "create", "--repo", SHOP, "--body-file", "-", "--title", "T"),
    )


@pytest.mark.parametrize(
    "command",
    [
        "",
        "pr",
        "api user",
        "api repos/o/shop",
        "auth token",
        "auth login",
        "extension install x/y",
        "alias set x !sh",
        "config set pager sh",
        "repo clone o/other",
        "repo delete",
        "repo view o/other",
        "gist create secret",
        "secret set X",
        "ssh-key add key",
        "release create v1 /etc/passwd",
        "release upload v1 /etc/passwd",
        "run download 1",
        "pr checkout 1",
        "pr list --repo o/other",
        "pr list -R o/other",
        "pr list -Ro/other",
        "pr list --repo=o/other",
        "pr list --repo",
        "pr view https://github.com/o/other/pull/1",
        "pr view --web",
        "pr view -w",
        "pr create --title T --body-file /etc/passwd",
        "pr create --title T -F/etc/passwd",
        "pr create --title T -F /etc/passwd",
        "pr create --title T -dF /etc/passwd",
        "pr create --template /etc/passwd",
        "issue create --template=/etc/passwd",
        "pr create --recover /etc/passwd",
        "issue create --editor",
        "pr merge 1 --admin",
        "pr list --hostname evil.example",
        "pr list --unknown",
        "-R o/other pr list",
        "--repo o/other pr list",
        "pr list -- --web",
        "pr create",
        "pr view https:/o/other/pull/1",
        "pr view HTTPS:/o/other/pull/1",
        "issue view o/other#1",
        "pr list --json number --jq env.GH_TOKEN",
        "pr list --json number -q $ENV.GH_TOKEN",
        "pr list --json number --jq=.[]|$ENV",
        "pr list --json number --jq [.[],env]|tostring",
        "issue list --search repo:o/other",
        "issue list -S is:open\tOR\tx",
        "issue list --search=REPO:o/other",
        "issue list --author x\trepo:o/other",
        'pr list --assignee "x"',
        "pr list --label (a",
    ],
)
def test_everything_else_is_refused(command: str) -> None:
    branch = "" if command == "pr create" else "topic"
    with pytest.raises(GhRefused):
        check_gh(words(command), SHOP, branch, has_text=False)
