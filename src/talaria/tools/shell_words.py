"""Reading a command line, as far as that can be done without running it. A convenience: the sandbox is the boundary."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from talaria.tools.protected import Protected

MAX_SIMPLE_CHARS = 2_000
_SPECIAL_CHARS = frozenset("|&;<>()$`\\\n*?[]{}~!#=\r")
"""With one of these more may happen than the words say."""
_INTERPRETERS = (
    r"(?:a|ba|da|elvi|fi|c|k|lk|mk|o|pdk|pw|rba|tc|xon|ya|z)?sh|nu|rc|python[\d.]*|ipython[\d.]*|pypy[\d.]*|node|deno|"
    r"bun|perl|ruby|php|lua|awk|gawk|env|xargs|sudo|doas|su|eval|exec|"
    r"source|\.|nohup|time|timeout|nice|watch|find|make|npx|uvx|pipx|ssh|docker|podman|kubectl|systemd-run|export|alias|"
    r"setsid|busybox"
)
"""What they do is said by their arguments or by files: a word in front of it means nothing."""
_RUN_OTHERS = (
    r"npm|npm-.*|pnpm|yarn|corepack|pip[\d.]*|uv|poetry|pdm|hatch|tox|nox|pytest|cargo|rustc|rustup|go|just|rake|gradle|gradlew|"
    r"mvn|mvnw|ant|bazel|cmake|ctest|ninja|meson|scons|composer|bundle|gem|mix|rebar3|dotnet|conda|mamba|pre-commit|"
    r"command|builtin|stdbuf|unbuffer|script|chroot|unshare|nsenter|bwrap|firejail|flock|parallel|strace|ltrace|gdb|lldb|"
    r"ionice|taskset|chrt|setpriv|runuser|pkexec|sg|dbus-run-session|tmux|screen|osascript|expect|tclsh|wish|rscript|"
    r"julia|ghci|runghc|erl|iex|elixir|irb|scala|groovy|java|jshell|psql|mysql|sqlite3|vi|vim|nvim|ed|ex|emacs|nano|less|"
    r"more|man|rlwrap|sshpass|scp|sftp|rsync|tar|zip|cpio|sed|m4|at|batch|crontab|systemctl|launchctl|open|xdg-open|"
    r"start-stop-daemon|daemonize|entr|fd|rg|ansible.*|vagrant|terraform|pulumi|helm|nix.*|guix|snap|flatpak|"
    r"fakeroot|proot|prlimit|choom|hyperfine|direnv|asdf|mise|rtx|pyenv|rbenv|nodenv|jenv|volta|fnm|nvm|op|aws-vault|"
    r"chamber|dotenv|dotenvx|foreman|overmind|honcho|pm2|nodemon|ts-node|tsx|tsc|vite|vitest|jest|mocha|ava|eslint|"
    r"prettier|stylelint|webpack|rollup|parcel|esbuild|gulp|grunt|turbo|nx|lerna|rush|playwright|cypress|electron|storybook|"
    r"firebase|vercel|netlify|wrangler|serverless|sls|cdk|sam|amplify|flask|django-admin|alembic|celery|gunicorn|uvicorn|"
    r"hypercorn|mkdocs|sphinx-.*|jupyter|rails|rspec|rubocop|jekyll|phpunit|artisan|symfony|swift|xcodebuild|zig|dart|"
    r"flutter|sbt|mill|lein|clj|clojure|stack|cabal|ghc|opam|dune|ocaml.*|racket|guile|sbcl|octave|gnuplot|crystal|nim.*|"
    r"gcc|g\+\+|cc|clang|tcc|ld|as|buck2?|pants|earthly|dagger|skaffold|tilt|act|packer|task|mage|invoke|fab|docker-compose|"
    r"podman-compose|nerdctl|buildah|runc|crun|lxc|incus|machinectl|minikube|trap|coproc|hash|enable|complete|bind|"
    r"mapfile|readarray|declare|typeset|local|readonly|set|shopt|unset|let|fc|history"
)
"""They run programs that their arguments name, or what files of a project say."""
_HARMLESS = frozenset(
    {"cat", "date", "df", "du", "file", "free", "head", "hostname", "id", "ls", "ps", "pwd", "stat", "tail", "uname"}
    | {"uptime", "wc", "which", "whoami"}
)
"""They show something and run nothing else, whatever follows them."""
_SEPARATORS = r"[|&;\n(){}`]|\b(?:then|do|else)\b"
_WIPING = frozenset({"wipefs", "blkdiscard", "sgdisk", "sfdisk", "parted"})
_DISK = re.compile(r"/dev/(?:sd|nvme|vd|hd|mmcblk|mapper|md|dm-|xvd)")
_DELETING = re.compile(
    r"\b(?:rm|unlink|shred|rmdir|truncate|rsync|mv|rmtree|remove)\b|\s-delete\b|\.git\b|\bcp\s+/dev/null\b|"
    r"\bgit\b.{0,200}?\b(?:clean|reset|checkout|restore|switch|stash|branch|update-ref|reflog|gc|prune|filter-branch|"
    r"filter-repo|worktree)\b",
    re.DOTALL,
)
_EVERYTHING = re.compile(r"(?:/|~|\$HOME|\$\{HOME\}|/(?:home|usr|etc|var|boot|root|bin|lib))/?\*?")


def split_simple(command: str) -> Sequence[str] | None:
    """Its words, if it is one program with plain words behind it, named by no path of the project; else None."""
    if len(command) > MAX_SIMPLE_CHARS or _SPECIAL_CHARS & set(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or re.fullmatch(_INTERPRETERS, _program_name(words[0])):
        return None
    return None if "/" in words[0] and not words[0].startswith("/") else words


def is_harmless(command: str) -> bool:
    """It will be the same again tomorrow: a yes for good is a yes to that."""
    words = split_simple(command)
    return words is not None and words[0] in _HARMLESS


def runs_others(program: str) -> bool:
    """Whether a yes to this program would be a yes to any other: then none that lasts is given."""
    return re.fullmatch(f"{_INTERPRETERS}|{_RUN_OTHERS}", _program_name(program), re.IGNORECASE) is not None


def _program_name(program: str) -> str:
    return PurePosixPath(program).name


def matches_rule(command: str, pattern: str, *, is_allowing: bool) -> bool:
    """`*` stands for a word, at the end for any number of them. To allow, it must be all that happens; to deny, it is
    enough that a command in it begins so."""
    wanted = pattern.split()
    if is_allowing:
        words = split_simple(command)
        return command.strip() == pattern.strip() or (words is not None and _fits(words, wanted))
    beginning = wanted if wanted[-1:] == ["*"] else [*wanted, "*"]
    return any(_fits(_split_loosely(part), beginning) for part in (command, *_split_commands(command)))


def _split_commands(command: str) -> list[str]:
    """The commands that seem to be in it."""
    return [part for part in re.split(_SEPARATORS, command) if part and not part.isspace()]


def _split_loosely(part: str) -> Sequence[str]:
    try:
        words = shlex.split(part) if len(part) <= MAX_SIMPLE_CHARS else part.split()
    except ValueError:
        words = part.split()
    return [_program_name(words[0]), *words[1:]] if words else words


def _fits(words: Sequence[str], wanted: Sequence[str]) -> bool:
    for index, pattern in enumerate(wanted):
        if pattern == "*" and index == len(wanted) - 1:
            return True
        if index >= len(words) or pattern not in ("*", words[index]):
            return False
    return len(words) == len(wanted)


def may_delete(command: str, place: str) -> bool:
    """Whether it is worth a closer look: it has a word in it that deletes files or speaks of a repository."""
    return _DELETING.search(command) is not None or ".git" in place


def is_destructive(command: str, protected: Protected) -> bool:
    """Wipes the disk, or goes for what is private. Each part is looked at once: it may be long."""
    if any(place in command for place in protected.names) or ":|:&" in "".join(command.split()):
        return True
    return any(_wipes(part.replace(">", " > ").split()) for part in _split_commands(command.replace("${HOME}", "~")))


def _wipes(words: Sequence[str]) -> bool:
    names = {_program_name(word) for word in words}
    if names & _WIPING or any(name.startswith("mkfs") for name in names):
        return True
    is_deep = any(word.startswith("-") and not word.startswith("--") and "r" in word.lower() for word in words)
    if "rm" in names and (is_deep or "--recursive" in words):
        return any(_EVERYTHING.fullmatch(word) for word in words)
    if names & {"dd", "shred", "tee", ">"}:
        return any(_DISK.match(word.removeprefix("of=")) for word in words)
    return False
