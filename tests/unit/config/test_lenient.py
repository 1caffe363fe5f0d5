"""Settings are read as far as they go, and what is wrong with the rest is said."""

from pathlib import Path

import pytest

from talaria.config.lenient import decode_leniently, load_leniently, read_env_leniently
from talaria.config.load import parse_yaml
from talaria.config.schema import Config
from talaria.config.secrets import is_safe_mode

FILE = Path("/home/me/config.yaml")
REST = "agent: {max_turns: 7}\n"


@pytest.mark.parametrize(
    ("wrong", "key", "says"),
    [
        ("streaming: false", "streaming", "there is no setting 'streaming'"),
        ("modle: {}", "modle", "did you mean 'model'?"),
        ("model: {max_tokens: many}", "model.max_tokens", "Expected `int | null`"),
        ("model: 3", "model", "Expected `object`"),
        ("model: {api_key: '${NOT_SET}'}", "model.api_key", "uses ${NOT_SET}, which is not set"),
        ("plugins: {enabled: [1, x]}", "plugins.enabled.0", "Expected `str`"),
        ("providers: {fine: {}, own: {wire: none}}", "providers.own.wire", "providers.*.wire is wrong"),
        (
            "providers: {own: {models: {fine: {}, m: {prices: {input: 1}}}}}",
            "providers.own.models.m.prices",
            "missing required field `output`",
        ),
        ("mcp_servers: {a: {command: x}}\nmcpServers: {a: {command: x}}", "mcpServers", "'a' is named twice"),
        ("auxiliary: {tasks: 3}", "auxiliary.tasks", "auxiliary.tasks is wrong"),
    ],
)
def test_only_what_is_wrong_is_left_out(wrong: str, key: str, says: str) -> None:
    config, problems = decode_leniently(parse_yaml(f"{wrong}\n{REST}", FILE), {}, FILE)
    assert config.agent.max_turns == 7
    assert [".".join(map(str, problem.key)) for problem in problems] == [key]
    assert says in problems[0].sentence
    assert problems[0].is_unknown == ("no setting" in says or "did you mean" in says)


def test_each_of_several_mistakes_is_told() -> None:
    text = "a: 1\nb: {c: 2}\nmodel: {default: demo, wire: none, max_tokens: 0, base_url: '${X}'}\nweb: 3\n"
    config, problems = decode_leniently(parse_yaml(text, FILE), {}, FILE)
    assert config.model.default == "demo"
    assert {problem.key for problem in problems} == {
        ("a",),
        ("b",),
        ("model", "wire"),
        ("model", "max_tokens"),
        ("model", "base_url"),
        ("web",),
    }


@pytest.mark.parametrize(
    "text", ["model: [", "- a\n- b", "when: 2025-99-99", "model: &a {default: *a}", "[" * 5000], ids=str
)
def test_a_file_that_cannot_be_read_gives_the_defaults(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    config, problems = load_leniently(file, {})
    assert (config, [problem.is_unreadable for problem in problems]) == (Config(), [True])
    assert str(file) in problems[0].sentence


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    (tmp_path / ".env").mkdir()
    assert load_leniently(tmp_path / "config.yaml", {})[1][0].is_unreadable
    found, problems = read_env_leniently(tmp_path / ".env")
    assert (found, [problem.sentence for problem in problems]) == (
        {},
        [f"Cannot read {tmp_path}/.env: Is a directory."],
    )


def test_of_secrets_each_line_counts_that_says_something(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=1\nnonsense\nB=2 # two\n")
    file.chmod(0o644)
    found, problems = read_env_leniently(file)
    assert found == {"A": "1", "B": "2"}
    assert [problem.sentence.replace(str(file), "FILE") for problem in problems] == [
        "FILE can be read by other users; `chmod 600 FILE` makes it private.",
        "FILE, line 2: expected NAME=value.",
    ]


@pytest.mark.parametrize(
    ("key", "is_about"),
    [("model", True), ("model.wire", True), ("model.wire.x", True), ("model.default", False), ("web", False)],
)
def test_a_problem_is_about_a_setting_and_what_holds_it(key: str, is_about: bool) -> None:
    _, (problem,) = decode_leniently({"model": {"wire": "none"}}, {}, FILE)
    assert problem.is_about(key.split(".")) == is_about


def test_safe_mode_is_asked_for_in_the_environment() -> None:
    assert is_safe_mode({"TALARIA_SAFE_MODE": "1"})
    assert not is_safe_mode({"TALARIA_SAFE_MODE": "0"})
    assert not is_safe_mode({})
