"""The course as `make lab` opens it, in a real browser: a copy of the folder, its JupyterLab, and Debian's chromium."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from pages import PAGES, quick

from labkit import notebooks

collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]  # make test-browser installs it

CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
START_S = 120


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A copy of the course with QUICK set in every notebook, and the notebooks of these tests beside them."""
    folder, project = tmp_path_factory.mktemp("course"), notebooks.FOLDER.parent
    shutil.copytree(project / "labkit", folder / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(project / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for path in (folder / "notebooks").glob("*.ipynb"):
        quick(path)
    for name, page in PAGES.items():
        (folder / "notebooks" / f"{name}.ipynb").write_text(page)
    return folder


@pytest.fixture(scope="session")
def lab(course, labkit_home, tmp_path_factory):
    """What `make lab` starts: `link` is what it printed, `errors()` what it wrote to stderr."""
    told = tmp_path_factory.mktemp("told") / "stderr"
    environment = os.environ | {
        "PYTHONPATH": str(course), "HOME": str(tmp_path_factory.mktemp("user")), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):  # no other browser
        environment.pop(variable, None)
    with told.open("wb") as stderr:
        server = subprocess.Popen(
            [sys.executable, "-m", "labkit", "lab"], cwd=course, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    try:
        yield SimpleNamespace(link=_link_in(server, told), errors=partial(told.read_text, errors="replace"))
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        finally:
            server.kill()
            server.stdout.close()


def _link_in(server, told) -> str:
    text, deadline = b"", time.monotonic() + START_S
    while not (found := re.search(rb"http://\S+token=\S+\n", text)):
        left = max(0.0, deadline - time.monotonic())
        piece = os.read(server.stdout.fileno(), 1 << 16) if select.select([server.stdout], [], [], left)[0] else b""
        assert piece, f"no link within {START_S} s: {text} {told.read_text(errors='replace')}"
        text += piece
    return found[0].decode().strip()


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        assert program, "chromium is not on this machine: make test-browser installs it"
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM, timeout=START_S * 1e3)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, lab, request):
    """A window on JupyterLab, which must have shown no error and asked nobody but this machine when the test ends."""
    from jupyterlab_page import Page

    window = Page(chromium, lab.link)
    yield window
    window.shot(f"end-{request.node.name}")
    trouble = list(window.trouble)
    window.close()
    assert not trouble, "\n".join([*trouble, "the server said:", lab.errors()])
