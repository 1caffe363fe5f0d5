"""Text that is shown as it is in markdown."""


def fenced(text: str) -> str:
    """With a fence that is longer than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
