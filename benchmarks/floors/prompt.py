"""A line to type on, and nothing behind it."""

from prompt_toolkit import PromptSession

if __name__ == "__main__":
    PromptSession[str]().prompt("› ")
