"""JupyterLab's window as a learner uses it: open a notebook, run it, look at the panel, press."""

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Locator, expect

SCREENSHOTS = Path(__file__).resolve().parent.parent.parent / ".labkit" / "screenshots"
WAIT_MS = 60_000
LAPTOP, PROJECTOR = (1280, 800), (1024, 768)

expect.set_options(timeout=WAIT_MS)


class Page:
    """One window. `trouble` collects errors of the console, failed requests, and requests beyond this machine."""

    def __init__(self, browser, link: str, size: tuple[int, int] = LAPTOP):
        self._link, self.trouble = urlsplit(link), []
        self._context = browser.new_context(viewport={"width": size[0], "height": size[1]})
        self._context.set_default_timeout(WAIT_MS)
        self.window = self._context.new_page()
        self.window.on("console", self._console)
        self.window.on("pageerror", lambda error: self.trouble.append(f"error in the page: {error}"))
        self.window.on("request", self._asks)
        self.window.on("requestfailed", lambda asked: self.trouble.append(f"failed: {asked.url} {asked.failure}"))
        self.window.on("response", self._answered)
        self.window.goto(link)
        expect(self.notebook).to_be_visible()

    def _console(self, message) -> None:
        if message.type == "error":
            self.trouble.append(f"console: {message.text} {message.location}")

    def _asks(self, asked) -> None:
        to = urlsplit(asked.url)
        if to.scheme not in ("data", "blob") and to.netloc != self._link.netloc:
            self.trouble.append(f"asks beyond the server: {asked.url}")

    def _answered(self, answer) -> None:
        if answer.status >= 400:
            self.trouble.append(f"{answer.status}: {answer.request.method} {answer.url}")

    # -- notebooks
    def open(self, name: str) -> None:
        """Show this notebook, and wait until its kernel is idle."""
        self.window.locator(".jp-DirListing-item", has_text=name).dblclick()
        expect(self.notebook.locator(".jp-Cell").first).to_be_visible()
        expect(self.window.locator("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current", has_text=name)).to_be_visible()
        self.idle()

    @property
    def notebook(self) -> Locator:
        return self.window.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")

    def idle(self) -> None:
        """The status bar's word counts: the notebook's own sign says it before the kernel is there."""
        expect(self.window.locator("#jp-main-statusbar").get_by_text("| Idle")).to_be_visible()

    def waits(self) -> None:
        """A cell is running. (The status bar says idle whenever a click was done meanwhile.)"""
        expect(self.notebook.locator(".jp-InputPrompt", has_text="[*]")).to_have_count(1)

    def menu(self, name: str, entry: str) -> None:
        self.window.locator(".lm-MenuBar-item", has_text=re.compile(f"^{name}$")).click()
        self.window.locator(".lm-Menu-item", has_text=re.compile(f"^{entry}")).first.click()

    def run_all(self) -> None:
        self.menu("Run", "Run All Cells")

    def restart_and_run_all(self) -> None:
        self.menu("Kernel", "Restart Kernel and Run All Cells")
        self.window.locator(".jp-Dialog .jp-mod-accept").click()

    def add_and_run(self, source: str) -> None:
        """Run this in a new cell below all others, as soon as the kernel is idle."""
        self.idle()
        cells = self.notebook.locator(".jp-Cell")
        before = cells.count()
        cells.last.locator(".jp-InputPrompt").click()
        self.window.keyboard.press("b")
        expect(cells).to_have_count(before + 1)
        cells.last.locator(".cm-content").click()
        self.window.keyboard.insert_text(source)
        self.window.keyboard.press("Control+Enter")

    def dark(self, on: bool) -> None:
        """Take the dark theme, or go back to the light one."""
        self.menu("Settings", "Theme")
        name = "JupyterLab Dark" if on else "JupyterLab Light"
        self.window.locator(".lm-Menu-item", has_text=re.compile(f"^{name}$")).click()
        expect(self.window.locator(f"body[data-jp-theme-light='{'false' if on else 'true'}']")).to_be_attached()

    def run_cells(self, timeout_s: float = 120) -> None:
        """Wait until every code cell has a number and none runs."""
        prompts = self.notebook.locator(".jp-CodeCell .jp-InputPrompt")
        deadline = time.monotonic() + timeout_s
        while not ((seen := prompts.all_text_contents()) and all(re.fullmatch(r"\[\d+\]:", text) for text in seen)):
            assert time.monotonic() < deadline, f"not all cells ran within {timeout_s} s: {seen}"
            self.window.wait_for_timeout(100)
        self.idle()

    @property
    def errors(self) -> list[str]:
        """What cells raised, and what they wrote to stderr."""
        return self.notebook.locator("[data-mime-type='application/vnd.jupyter.stderr']").all_text_contents()

    # -- the panel
    @property
    def panel(self) -> Locator:
        return self.notebook.locator(".labkit-panel")

    def row(self, name: str) -> Locator:
        return self.panel.locator(f".labkit-row:has([data-name='{name}'])")

    def state(self, name: str) -> Locator:
        return self.row(name).locator(".labkit-state")

    def details(self, name: str) -> Locator:
        return self.row(name).locator(".labkit-who")

    def button(self, words: str) -> Locator:
        return self.panel.locator(f"button[title='{words}']")

    @property
    def picture(self) -> Locator:
        return self.panel.locator("svg[role=img]")

    def overflow(self) -> list[str]:
        """The buttons of the panel that stand out of its column."""
        return self.panel.evaluate(
            """panel => [...panel.querySelectorAll("button")].filter(
                 button => button.getBoundingClientRect().right > panel.getBoundingClientRect().right + 1
               ).map(button => button.title)"""
        )

    def shot(self, name: str, part: Locator | None = None) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        (part or self.window).screenshot(path=path)
        return path

    def close(self) -> None:
        """Close it, end the kernels it started, and forget its tabs."""
        base = f"{self._link.scheme}://{self._link.netloc}"
        api = f"{base}/api/sessions"
        key = {"Authorization": f"token {self._link.query.removeprefix('token=')}"}
        self.window.close()
        for session in self._context.request.get(api, headers=key).json():
            self._context.request.delete(f"{api}/{session['id']}", headers=key)
        self._context.request.delete(f"{base}/lab/api/workspaces/default", headers=key)  # which tabs were open
        self._context.close()
