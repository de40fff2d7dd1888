"""`make lab`: JupyterLab for this course alone: on loopback, behind a token, quiet, and one link to open."""

import json
import os
import secrets
import signal
import sys
import webbrowser
from pathlib import Path

from . import notebooks
from .errors import LabError

_CHECK_TIMEOUT_S = 30
_SETTINGS = {  # of JupyterLab, where the learner has not chosen otherwise
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # A click on a widget goes to a thread of its own, so the panel works while a cell waits.
    "@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "perCommTarget"},
}


def main(port: int = 8888, ip: str = "127.0.0.1") -> int:
    """Serve the notebooks until Ctrl-C, on `port` or, if somebody has it, on the next that is free.

    ip -- where it listens; another than loopback is for a container, whose ports only its owner can reach

    Raises LabError if JupyterLab cannot start, or does not answer on the link.
    """
    first = notebooks.find("00")
    if not os.access(first, os.W_OK):
        owner, me = first.stat(), os.geteuid()
        print(
            f"Your work will not be saved: {first.parent} belongs to user {owner.st_uid}, and this is user {me}.",
            "Another user may have fetched the course; and in a container, a user is a number.",
            f"Type: sudo chown -R {me} notebooks    Or: LAB_USER={owner.st_uid}:{owner.st_gid} docker compose up",
            sep="\n",
            file=sys.stderr,
            flush=True,
        )
    notebooks.private_settings()
    folder = Path(os.environ["JUPYTER_CONFIG_DIR"], "labconfig")
    folder.mkdir(exist_ok=True)
    (folder / "default_setting_overrides.json").write_text(json.dumps(_SETTINGS))
    from jupyterlab.labapp import LabApp  # takes a second to import

    token = secrets.token_urlsafe(24)
    server = LabApp.initialize_server(
        [
            f"--ServerApp.root_dir={notebooks.FOLDER}",
            f"--ServerApp.ip={ip}",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=100",
            f"--IdentityProvider.token={token}",
            "--ServerApp.open_browser=False",
            f"--ServerApp.allow_root={os.geteuid() == 0}",
            "--Application.log_level=ERROR",
            "--KernelSpecManager.allowed_kernelspecs=python3",  # the one of this environment
            "--LabApp.news_url=None",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.extension_manager=readonly",  # else it asks a package index for extensions
        ]
    )
    link = f"http://127.0.0.1:{server.port}/lab/tree/{first.name}?token={token}"
    failed: list[LabError] = []

    async def announce() -> None:
        """Print the link, but only after it has answered."""
        try:
            await _answers(link)
        except OSError as error:
            failed.append(
                LabError(
                    f"JupyterLab started, but does not answer on its link: {error}.",
                    "Something on this machine may keep connections to 127.0.0.1 away, a firewall for example.",
                    "Run: make doctor",
                )
            )
            server.stop()
            return
        print(f"\nThe laboratory is open (end it with Ctrl-C):\n\n    {link}\n", flush=True)
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(link)

    def close(*_) -> None:
        """End kernels and server, without a question; a second Ctrl-C does not wait for them."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server.stop(from_signal=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ctrl-C, a kill, the terminal closed
        signal.signal(number, close)
    server.io_loop.add_callback(announce)
    server.start()
    if failed:
        raise failed[0]
    print("The laboratory is closed.", file=sys.stderr)
    return 0


async def _answers(link: str) -> None:
    """Raises OSError unless the link answers with a page."""
    from tornado.httpclient import AsyncHTTPClient

    await AsyncHTTPClient().fetch(link, request_timeout=_CHECK_TIMEOUT_S)
