"""The browser's tools. Their names and arguments are those of Hermes."""

from typing import Annotated, Any, Literal

from talaria.net.urls import parse_url
from talaria.tools.base import Claim, RichResult, Run, Scope, Tool
from talaria.tools.browser.browser import Browser
from talaria.tools.function import tool
from talaria.tools.hosts import claim_host

NAMES = (
    *("browser_navigate", "browser_snapshot", "browser_click", "browser_type", "browser_press", "browser_scroll"),
    *("browser_back", "browser_screenshot", "browser_console"),
)
TIMEOUT_S = 180.0
"""For all steps together; each step also has its own limit."""
LOOKING = Claim(is_untrusted=True)

Ref = Annotated[str, "The reference of an element in the last snapshot, for example e12."]


def browser_tools(browser: Browser) -> tuple[Tool, ...]:
    def moving(_: Any, scope: Scope) -> Claim:
        """The page can notice and count these calls."""
        host = browser.host(scope.session)
        return Claim(hosts=(host,) if host else (), reveals=True, is_untrusted=True)

    def acting(_: Any, scope: Scope) -> Claim:
        host = browser.host(scope.session)
        return Claim(hosts=(host,) if host else (), sends=True, is_untrusted=True)

    @tool(after_crash="repeat", claim=claim_host, timeout_s=TIMEOUT_S)
    async def browser_navigate(url: Annotated[str, "The address, starting with https:// or http://."], run: Run) -> str:
        """Open a page in a real browser and show it as a tree of elements, with references for the other browser tools.

        For pages that need scripts, logins or clicks; web_fetch is quicker for reading. Addresses that are not on the
        public internet are refused.
        """
        wanted = parse_url(url)
        async with browser.visiting(run.scope.session, opens=True) as window:
            return await window.navigate(wanted, url.partition("#")[2])

    @tool(after_crash="repeat", claim=LOOKING, timeout_s=TIMEOUT_S)
    async def browser_snapshot(
        run: Run, offset: Annotated[int, "The line to start at, to continue a long page."] = 0
    ) -> str:
        """Show the open page as it is now: a tree of its elements with references such as [ref=e12]."""
        async with browser.visiting(run.scope.session) as window:
            return await window.snapshot(offset)

    @tool(claim=moving, timeout_s=TIMEOUT_S)
    async def browser_scroll(direction: Literal["up", "down"], run: Run) -> str:
        """Scroll the open page by most of the window's height, to load more or to take a screenshot of another part."""
        async with browser.visiting(run.scope.session) as window:
            return await window.scroll(direction)

    @tool(claim=moving, timeout_s=TIMEOUT_S)
    async def browser_back(run: Run) -> str:
        """Go back to the previous page."""
        async with browser.visiting(run.scope.session) as window:
            return await window.back()

    @tool(after_crash="repeat", claim=LOOKING, timeout_s=TIMEOUT_S)
    async def browser_screenshot(run: Run) -> RichResult:
        """Take a screenshot of the visible part of the open page."""
        async with browser.visiting(run.scope.session) as window:
            return await window.screenshot()

    @tool(after_crash="repeat", claim=LOOKING, timeout_s=TIMEOUT_S)
    async def browser_console(run: Run) -> str:
        """Show the console messages and errors of the open page."""
        async with browser.visiting(run.scope.session) as window:
            return await window.console()

    @tool(claim=acting, timeout_s=TIMEOUT_S)
    async def browser_click(ref: Ref, run: Run) -> str:
        """Click an element of the open page."""
        async with browser.visiting(run.scope.session) as window:
            return await window.click(ref)

    @tool(claim=acting, timeout_s=TIMEOUT_S)
    async def browser_type(
        ref: Ref,
        text: Annotated[str, "The text that replaces the field's content; for a list, the option to choose."],
        run: Run,
        submit: Annotated[bool, "Press Enter afterwards."] = False,
    ) -> str:
        """Enter text in a field of the open page, or choose an option from a list."""
        async with browser.visiting(run.scope.session) as window:
            return await window.enter(ref, text, submits=submit)

    @tool(claim=acting, timeout_s=TIMEOUT_S)
    async def browser_press(
        key: Annotated[str, "For example Enter, Tab, Escape, ArrowDown, Control+a."], run: Run
    ) -> str:
        """Press a key in the open page."""
        async with browser.visiting(run.scope.session) as window:
            return await window.press(key)

    return (
        *(browser_navigate, browser_snapshot, browser_scroll, browser_back, browser_screenshot, browser_console),
        *(browser_click, browser_type, browser_press),
    )
