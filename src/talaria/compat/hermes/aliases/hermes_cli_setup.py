"""`hermes_cli.setup`: how a plugin's own set-up speaks with the person at the terminal."""

from collections.abc import Sequence
from getpass import getpass

from talaria.compat.hermes.aliases.hermes_cli_config import get_env_value as get_env_value  # noqa: PLC0414  (passed on)
from talaria.compat.hermes.aliases.hermes_cli_config import save_env_value as save_env_value  # noqa: PLC0414  (passed on)


def prompt(question: str, default: str | None = None, password: bool = False) -> str:
    """What is typed; `default` if that is nothing. A secret is not shown."""
    shown = f"{question} [{default}]: " if default else f"{question}: "
    return (getpass(shown) if password else input(shown)).strip() or default or ""


def prompt_yes_no(question: str, default: bool = True) -> bool:
    while True:
        typed = input(f"{question} [{'Y/n' if default else 'y/N'}]: ").strip().lower()
        if not typed or typed in ("y", "yes", "n", "no"):
            return typed.startswith("y") if typed else default
        print_error("Type y or n.")


def prompt_choice(question: str, choices: Sequence[str], default: int = 0) -> int:
    """The index of one of them."""
    print_info(question)
    for number, choice in enumerate(choices, 1):
        print_info(f"  {number}. {choice}")
    while True:
        typed = input(f"[{default + 1}]: ").strip()
        if not typed:
            return default
        if typed.isdecimal() and 1 <= int(typed) <= len(choices):
            return int(typed) - 1
        print_error(f"Type a number from 1 to {len(choices)}.")


def print_info(text: str) -> None:
    print(text)  # noqa: T201  (to the person, who is at the terminal)


def print_header(title: str) -> None:
    print_info(f"\n{title}")


def print_success(text: str) -> None:
    print_info(f"✓ {text}")


def print_warning(text: str) -> None:
    print_info(f"! {text}")


def print_error(text: str) -> None:
    print_info(f"✗ {text}")
