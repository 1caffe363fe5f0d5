"""Which commands are asked about because they delete what git could not bring back, and which are not."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talaria.tools.base import Claim, Language
from talaria.tools.policy import ApprovalSettings, Policy, PolicyRequest, Verdict
from talaria.tools.protected import Protected
from talaria.tools.shell_commands import SimpleCommand, TooDeep, literal, parse

PROTECTED = Protected(Path("/home/ada"), Path("/home/ada/.talaria"))
IGNORED = "/dist/\n.env\n*.log\n"
TRACKED = {"a.py": "a", "b.py": "b", "old.txt": "then", "package.json": "{}", ".gitignore": IGNORED, "my file": "x"}
MANY = {f"src/m{number:02}.py": "pass\n" for number in range(25)}
UNTRACKED = {
    "thesis.txt": "years of work",
    ".env": "KEY=1",
    "data/raw.csv": "1,2",
    "x.log": "log",
    "dist/app.js": "built",
    "node_modules/left-pad/index.js": "",
    "env/pyvenv.cfg": "",
    "env/bin/python": "",
    "__pycache__/a.pyc": "",
    "cache/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n",
    "cache/big": "",
    "out/report.pdf": "r",
    "rust/Cargo.toml": "",
    "rust/target/debug/app": "",
    "star*.txt": "",
    "src/m00.pyc": "",
    ".git/index.lock": "",
    "made/by-us.txt": "",
}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *identity, *arguments], cwd=folder, env=environment, check=True, capture_output=True)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with changes that are not committed, and much beside it that git does not have."""
    folder = tmp_path_factory.mktemp("projects") / "project"
    write(folder, TRACKED | MANY)
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    write(folder, UNTRACKED | {"old.txt": "now"})
    write(folder / "nested", {"inner.txt": "x"})
    git(folder / "nested", "init")
    git(folder / "nested", "add", "inner.txt")
    (folder / "link").symlink_to("data")
    (folder / "away").symlink_to(folder.parent)
    write(folder.parent, {"beside.txt": "not of the project"})
    return folder.resolve()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@pytest.fixture
def clean(project: Path, tmp_path: Path) -> Path:
    """The same without anything that git does not have."""
    git(project.parent, "clone", "--quiet", str(project), str(tmp_path / "clean"))
    return (tmp_path / "clean").resolve()


def decide(
    command: str,
    project: Path,
    place: str = "",
    language: Language = "shell",
    created_here: Callable[[Path], bool] = lambda _: False,
    *,
    is_confined: bool = True,
) -> Verdict:
    policy = Policy(ApprovalSettings(), PROTECTED, created_here)
    claim = Claim(command=command, language=language, workdir=str(project / place), is_confined=is_confined)
    return policy.decide(PolicyRequest("terminal", claim, project))


ASKED = {
    # what git does not have
    "rm thesis.txt": "it deletes thesis.txt, which is not in git",
    "rm -rf thesis.txt .git/refs .git/objects": "it damages the git repository: .git/refs, .git/objects",
    "rm -- thesis.txt": "thesis.txt",
    "rm -f ./data/../thesis.txt": "thesis.txt",
    "rm 'thesis.txt'": "thesis.txt",
    "rm thesis.txt 2>/dev/null || true": "thesis.txt",
    "rm th*": "thesis.txt",
    "rm th[aeiou]sis.*": "thesis.txt",
    "rm {thesis,other}.txt": "thesis.txt",
    "rm -r data": "data/raw.csv",
    "rm data/*": "data/raw.csv",
    "rm link/raw.csv": "data/raw.csv",
    "rm .env": ".env, which is not in git",
    "rm -r out": "out/report.pdf",
    "unlink thesis.txt": "thesis.txt",
    "shred -u thesis.txt": "thesis.txt",
    "truncate -s 0 thesis.txt": "thesis.txt",
    "cp /dev/null thesis.txt": "thesis.txt",
    "/bin/rm thesis.txt": "thesis.txt",
    "rm 'star*.txt'": "star*.txt",
    # changed since git saw it
    "rm old.txt": "it deletes old.txt, which has changes that are not in git",
    "rm old.txt thesis.txt": "2 files that git cannot bring back: old.txt (changed), thesis.txt (not in git)",
    # many
    "rm -r src": "it deletes 25 files: src/m00.py, src/m01.py",
    "rm src/*.py": "it deletes 25 files",
    "rm -rf *": "it deletes 40 files",
    "rm -rf .": ".git",
    "git rm -r src": "it deletes 25 files",
    # through others
    "sudo -u root rm thesis.txt": "thesis.txt",
    "env A=1 nice -n 5 rm thesis.txt": "thesis.txt",
    "timeout 5 rm thesis.txt": "thesis.txt",
    "sh -c 'rm thesis.txt'": "thesis.txt",
    'bash -lc "cd data && rm raw.csv"': "data/raw.csv",
    "eval 'rm thesis.txt'": "thesis.txt",
    "trap 'rm thesis.txt' EXIT": "thesis.txt",
    "cd data && rm -rf .": "data/raw.csv",
    "cd nowhere; rm -rf data": "data/raw.csv",
    "(cd data; ls); rm thesis.txt": "thesis.txt",
    "ls | xargs rm": "only known when it runs",
    "echo thesis.txt | xargs rm": "thesis.txt",
    "find . -name '*.csv' | xargs rm": "data/raw.csv",
    "echo 'rm thesis.txt' | sh": "thesis.txt",
    "echo $(rm thesis.txt)": "thesis.txt",
    "echo `rm thesis.txt`": "thesis.txt",
    "cat a.py && rm thesis.txt & wait": "thesis.txt",
    "if true; then rm thesis.txt; fi": "thesis.txt",
    "f() { rm thesis.txt; }; f": "thesis.txt",
    "bash <<'EOF'\nrm thesis.txt\nEOF": "thesis.txt",
    'for f in *.txt; do rm "$f"; done': "thesis.txt",
    "F=thesis.txt; rm $F": "thesis.txt",
    'export D=data\nrm -r "$D"': "data/raw.csv",
    'F="a.py thesis.txt"; for f in $F; do rm "$f"; done': "thesis.txt",
    'rm "$(pwd)/thesis.txt"': "thesis.txt",
    "rm rm thesis.txt": "thesis.txt",
    # cannot be known
    'rm -rf "$X"/*': "what it deletes is only known when it runs: $X/*",
    "sh -c \"rm -rf '$X'\"": "only known when it runs: …",
    "rm -rf $(cat list)": "only known when it runs",
    'while read f; do rm "$f"; done < list': "only known when it runs",
    # find
    "find . -name '*.csv' -delete": "data/raw.csv",
    "find data -type f -exec rm {} +": "data/raw.csv",
    "find . -name data -exec rm -rf {} \\;": "data/raw.csv",
    "find . -exec sh -c 'rm \"$1\"' _ {} \\;": "only known when it runs",
    "find . -type f -delete": "thesis.txt",
    "find . \\( -name '*.x' -o -name '*.csv' \\) -delete": "data/raw.csv",
    "find . \\( -name '*.csv' -o -name '*.x' \\) -delete": "data/raw.csv",
    # moved away
    "mv thesis.txt /tmp": "thesis.txt",
    "mv thesis.txt /dev/null": "thesis.txt",
    "mv data ..": "data/raw.csv",
    "mv -t /tmp thesis.txt": "thesis.txt",
    "rsync -a --delete src/ data/": "data/raw.csv",
    # repositories
    "rm -rf .git": "it damages the git repository: .git",
    "rm -rf nested": "nested/.git",
    "mv .git .git.old": "damages the git repository: .git",
    "echo x > .git/HEAD": "damages the git repository: .git/HEAD",
    "cd .git && : > HEAD": ".git/HEAD",
    "dd if=/dev/zero of=.git/index": ".git/index",
    "echo | tee .git/HEAD": ".git/HEAD",
    "cp a.py .git/HEAD": ".git/HEAD",
    "chmod -R 000 .git": "damages the git repository: .git",
    "find .git -type f -delete": "damages the git repository",
    # git's own
    "git clean -fd": "it deletes 8 files that are not in git: away, link, star*.txt, thesis.txt",
    "git clean -fdx": "it deletes 10 files that are not in git: .env",
    "git clean -f data": "data/raw.csv",
    "git reset --hard": "`git reset --hard` discards changes that are not committed: old.txt",
    "git reset --hard HEAD~1": "old.txt",
    "git -C data reset --hard": "discards changes",
    "git checkout -- .": "old.txt",
    "git checkout .": "old.txt",
    "git checkout -- old.txt": "old.txt",
    "git restore .": "old.txt",
    "git checkout -f main": "old.txt",
    "git switch --discard-changes main": "old.txt",
    "git stash drop": "`git stash drop` deletes stashed changes",
    "git stash clear": "stashed",
    "git branch -D topic": "it deletes a branch, merged or not: topic",
    "git update-ref -d refs/heads/main": "deletes a branch or tag",
    "git reflog expire --expire=now --all": "git reflog expire",
    "git gc --prune=now": "git gc --prune",
    "git filter-branch --all": "rewrites the history",
    "git worktree remove -f ../other": "deletes a worktree",
    # scripts in other languages
    "python3 -c 'import shutil; shutil.rmtree(\"data\")'": "data/raw.csv",
    "python3 - <<EOF\nimport os\nos.remove('thesis.txt')\nEOF": "thesis.txt",
}

NOT_ASKED = (
    "ls -la",
    "rm a.py",
    "rm a.py b.py 'my file'",
    "rm src/m0*.py",
    "rm -f nothing-there.txt",
    "rm -rf node_modules dist env __pycache__ cache rust/target",
    "rm -rf node_modules/left-pad",
    "find . -name __pycache__ -exec rm -rf {} +",
    "find . -name '*.pyc' -delete",
    "find . -name '*.pyc' | xargs rm -f",
    "rm -rf /tmp/something /var/tmp/x ~/.cache/x",
    'D=$(mktemp -d); cp a.py "$D"; rm -rf "$D"',
    "tmp=$(mktemp); trap 'rm -f \"$tmp\"' EXIT",
    "cd /var/tmp && rm -rf *",
    "rm away/beside.txt",
    "touch new.txt && rm new.txt",
    "git clone https://example.org/x repo && rm -rf repo/.git",
    "rm -f .git/index.lock",
    "mv thesis.txt data/",
    "mv thesis.txt thesis.md",
    "echo x > thesis.txt",
    "echo build >> .git/info/exclude",
    "cat .git/HEAD > head.txt",
    "chmod -R u+w .git",
    "git status",
    "git checkout -b topic",
    "git checkout main",
    "git checkout -- a.py",
    "git restore --staged old.txt",
    "git reset",
    "git reset --soft HEAD~1",
    "git clean -nfd",
    "git branch -d merged",
    "git stash && git stash pop",
    "git gc",
    "git rm --cached thesis.txt",
    "git rm a.py",
    "git commit -m 'rm thesis.txt and git reset --hard'",
    "echo rm thesis.txt",
    "echo 'rm -rf .git'",
    "# rm thesis.txt",
    "cat > clean.sh <<'EOF'\nrm -rf thesis.txt .git\nEOF",
    "grep -rn 'rm thesis.txt' src",
    "rsync -a src/ data/",
    "docker rm thesis.txt",
    "find . -name '*.csv'",
    "find . -not -path './.git/*' -name '*.pyc' -delete",
    "find . -name '*.pyc' -o -name '*.pyo' | xargs rm",
    "python3 -c 'print(\"rm thesis.txt\")'",
    "cd src && rm m00.py",
)


@pytest.mark.parametrize(("command", "said"), ASKED.items())
def test_a_command_that_deletes_what_git_cannot_bring_back_is_asked_about(
    project: Path, command: str, said: str
) -> None:
    verdict = decide(command, project)
    assert (verdict.decision, verdict.kind) == ("ask", "deleting")
    assert said in verdict.reason


@pytest.mark.parametrize("command", NOT_ASKED)
def test_other_commands_are_not_asked_about(project: Path, command: str) -> None:
    verdict = decide(command, project)
    assert verdict.decision == "allow", verdict.reason


def test_it_counts_where_the_command_would_run(project: Path) -> None:
    assert "data/raw.csv" in decide("rm raw.csv", project, "data").reason
    assert "data/raw.csv" in decide("rm -rf ../data", project, "src").reason
    assert decide("rm raw.csv", project).decision == "allow"


def test_what_the_conversation_has_created_is_deleted_unasked(project: Path) -> None:
    created = {project / "made/by-us.txt", project / "nested/.git/HEAD"}
    assert decide("rm -r made", project).decision == "ask"
    assert decide("rm -r made nested/.git", project, created_here=created.__contains__).decision == "allow"
    assert "thesis.txt" in decide("rm -r made thesis.txt", project, created_here=created.__contains__).reason


def test_in_a_project_without_git_every_file_is_asked_about(tmp_path: Path) -> None:
    write(tmp_path, {"notes.txt": "", "node_modules/x/index.js": ""})
    assert decide("rm notes.txt", tmp_path).reason == "it deletes notes.txt, which is not in git"
    assert decide("rm -rf node_modules", tmp_path).decision == "allow"


def test_where_nothing_would_be_lost_git_may_discard(clean: Path) -> None:
    for command in ("git reset --hard", "git checkout .", "git checkout -f", "git clean -fdx", "git restore ."):
        assert decide(command, clean).decision == "allow", command
    (clean / "a.py").write_text("staged")
    git(clean, "add", "a.py")
    assert "what was staged" in decide("git reset --hard", clean).reason


def test_files_that_were_only_touched_can_be_brought_back(clean: Path) -> None:
    os.utime(clean / "a.py", (1, 1))
    assert decide("rm a.py", clean).decision == "allow"
    (clean / "a.py").write_text("A")  # as long as before
    assert decide("rm a.py", clean).decision == "ask"


def test_a_file_that_changed_while_the_index_was_written_is_compared(clean: Path) -> None:
    """Its time and size may be those that git has seen."""
    file = clean / "a.py"
    seen = file.stat().st_mtime_ns
    file.write_text("A")
    os.utime(file, ns=(seen, seen))
    os.utime(clean / ".git/index", ns=(seen, seen))
    assert decide("rm a.py", clean).decision == "ask"


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_the_index_is_read_in_every_version(clean: Path, version: str) -> None:
    git(clean, "update-index", "--index-version", version)
    write(clean, {"untracked": ""})
    assert decide("rm src/m00.py a.py", clean).decision == "allow"
    assert decide("rm untracked", clean).decision == "ask"


def test_an_index_that_cannot_be_read_brings_nothing_back(clean: Path) -> None:
    index = clean / ".git/index"
    whole = index.read_bytes()
    for broken in (b"", b"DIRC", whole[:-30], whole[:40] + b"?" + whole[41:], bytes(len(whole))):
        index.write_bytes(broken)
        assert "not in git" in decide("rm a.py", clean).reason


def test_worktrees_and_folders_of_a_larger_repository_are_known(clean: Path) -> None:
    git(clean, "worktree", "add", "--quiet", "-b", "topic", "tree")
    write(clean, {"tree/src/new.py": "", "src/new.py": ""})
    assert decide("rm tree/a.py", clean).decision == "allow"
    assert decide("rm a.py src/m00.py", clean / "tree").decision == "allow"
    assert decide("rm m00.py", clean / "src").decision == "allow"
    assert "new.py" in decide("rm new.py", clean / "src").reason
    assert "src/new.py" in decide("rm src/*", clean / "tree").reason


def test_a_submodule_has_an_index_of_its_own(clean: Path, project: Path) -> None:
    git(clean, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(project), "library")
    write(clean, {"library/new.py": ""})
    assert decide("rm library/a.py", clean).decision == "allow"
    assert "library/new.py" in decide("rm library/new.py", clean).reason


def test_links_are_deleted_themselves_and_lead_nowhere(clean: Path) -> None:
    (clean / "around").symlink_to(clean)
    (clean / "up").symlink_to("/")
    for command in ("rm -rf around/", "rm -r up"):
        assert "git cannot bring back" not in decide(command, clean).reason
    assert decide("rm around/a.py", clean).decision == "allow"
    assert decide("rm -rf up/etc", clean).decision == "allow"


def test_names_of_files_cannot_say_something_else(clean: Path) -> None:
    (clean / "a\n(asked because all is well)").touch()
    reason = decide("rm a*", clean).reason
    assert "\n" not in reason
    assert r"a\n(asked" in reason


def test_a_yes_to_any_command_is_no_yes_to_a_deletion(project: Path) -> None:
    verdict = decide("rm thesis.txt", project, is_confined=False)
    assert (verdict.kind, verdict.longest) == ("deleting", "session")
    assert verdict.reason == "it deletes thesis.txt, which is not in git; it runs outside of any sandbox"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import shutil\nshutil.rmtree('data')", "data/raw.csv"),
        ("from pathlib import Path\nbase = Path('data')\n(base / 'raw.csv').unlink()", "data/raw.csv"),
        ("import os\nos.remove('thesis.txt')", "thesis.txt"),
        ("import os\nos.system('rm thesis.txt')", "thesis.txt"),
        ("import subprocess\nsubprocess.run(['rm', '-rf', 'data'])", "data/raw.csv"),
        ("import shutil, sys\nshutil.rmtree(sys.argv[1])", "only known when it runs: shutil.rmtree(sys.argv[1])"),
        ("import os\nfor f in os.listdir():\n    os.remove(f)", "only known when it runs: os.remove(f)"),
    ],
)
def test_scripts_that_say_what_they_delete_are_asked_about(project: Path, code: str, said: str) -> None:
    assert said in decide(code, project, language="python").reason


@pytest.mark.parametrize(
    "code",
    [
        "print('rm thesis.txt')",
        "items = [1]\nitems.remove(1)",
        "import os, sys\nos.remove(sys.argv[1])",
        "import shutil\nshutil.rmtree('node_modules', ignore_errors=True)",
        "import shutil, tempfile\nplace = tempfile.mkdtemp()\nshutil.rmtree(place)",
        "import os, tempfile\nwith tempfile.TemporaryDirectory() as d:\n for x in 'ab': os.remove(os.path.join(d, x))",
        "import shutil\nshutil.rmtree(",
        "rm thesis.txt",
    ],
)
def test_other_scripts_are_not_asked_about(project: Path, code: str) -> None:
    assert decide(code, project, language="python").decision == "allow"


SHELL_TEXT = st.text(st.sampled_from("rm ab.*?[]{}()<>|&;$`'\"\\\n\t#=~!/-,git"), max_size=40)


@given(SHELL_TEXT | st.text(max_size=40))
@example("rm $(`")
@example("rm <<a <<b\n")
@example("{a,{b}")
def test_any_text_is_read_somehow(empty: Path, text: str) -> None:
    for command in (f"rm -rf {text}", f"git clean -f {text}"):
        decide(command, empty)


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20), min_size=1))
def test_words_in_quotes_are_what_they_say(words: list[str]) -> None:
    (command,) = parse(shlex.join(["rm", *words]))
    assert isinstance(command, SimpleCommand)
    assert [literal(word) for word in command.words] == ["rm", *words]


@pytest.mark.parametrize(
    "command",
    [
        "A=aa; " + "A=$A$A; " * 60 + "rm $A",
        "for a in {1..2000}; do for b in {1..2000}; do rm $a$b$a; done; done",
        "sudo " * 4_000 + "rm thesis.txt",
        "xargs " * 2_000 + "rm",
        "eval " * 100 + "rm thesis.txt",
        "rm " * 9_000,
    ],
    ids=["doubled", "loops", "sudo", "xargs", "eval", "words"],
)
def test_what_grows_without_end_is_asked_about(project: Path, command: str) -> None:
    assert decide(command, project).decision == "ask"


def test_words_of_any_length_are_read_in_bounded_work() -> None:
    for text in ("rm " * 10_000, "rm " + "{a,b}" * 2_000, "rm " + "`" * 10_001, "rm " + "${" * 10_000, "git " * 10_000):
        parse(text)
    for text in ("(" * 20_000, "$(" * 20_000, "<(" * 20_000):
        with pytest.raises(TooDeep):
            parse(text)
