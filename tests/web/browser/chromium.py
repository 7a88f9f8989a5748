"""Debian's headless Chromium, and a tab of it that notes everything that a page must not do."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

EXECUTABLE = "/usr/bin/chromium"
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no name but ours leads anywhere
)
WAIT_MS_MAX = 15_000

Theme = Literal["light", "dark"]
Language = Literal["en", "ja"]
LOCALES: dict[Language, str] = {"en": "en-GB", "ja": "ja-JP"}


def why_not_here() -> str | None:
    """Return why there is no Chromium; None if there is one."""
    if shutil.which(EXECUTABLE) is None:
        return f"{EXECUTABLE} is missing: install Debian's package chromium"
    return None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, and end it after the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=[*ARGUMENTS])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a person looks at a page."""

    theme: Theme = "light"
    language: Language = "en"
    width: int = 1_280
    height: int = 800

    def __str__(self) -> str:
        return f"{self.theme}-{self.language}-{self.width}"


@dataclass(kw_only=True)  # without slots: Playwright adds attributes
class Tab:
    """One tab. `problems` has a line for each console message, error and request to another host so far."""

    base: str  # of the dashboard, such as http://127.0.0.1:40123
    look: Look
    page: Page
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Load a page of the dashboard; a status other than 200 is a problem."""
        response = self.page.goto(f"{self.base}{path}", wait_until="load")
        if response is None or response.status != 200:
            self.problems.append(f"{path}: status {None if response is None else response.status}")
        return self.page

    def note_console(self, message: ConsoleMessage) -> None:
        self.problems.append(f"console {message.type}: {message.text}")

    def note_error(self, error: Exception) -> None:
        self.problems.append(f"error of a script: {error}")

    def note_request(self, request: Request) -> None:
        if urlsplit(request.url).scheme not in ("data", "blob") and not request.url.startswith(f"{self.base}/"):
            self.problems.append(f"request to another host: {request.url}")

    def take_problems(self) -> list[str]:
        """Return the problems so far, and forget them."""
        taken, self.problems = self.problems, []
        return taken


@contextmanager
def tab(browser: Browser, base: str, look: Look, *, scripts: bool = True) -> Iterator[Tab]:
    """Open a tab with its own cookies. Without `scripts`, JavaScript is disabled."""
    context: BrowserContext = browser.new_context(
        viewport={"width": look.width, "height": look.height},
        color_scheme=look.theme,
        locale=LOCALES[look.language],
        reduced_motion="reduce",
        java_script_enabled=scripts,
    )
    context.set_default_timeout(WAIT_MS_MAX)
    try:
        opened = Tab(base=base, look=look, page=context.new_page())
        context.on("console", opened.note_console)
        context.on("weberror", lambda failed: opened.note_error(failed.error))
        context.on("request", opened.note_request)
        yield opened
    finally:
        context.close()
