"""Compose v2 for the tests: what is installed, else Debian 13's, put into the course's own folder.

Debian 12 has only the old docker-compose, in Python; the new one is one file, a plugin of the docker command.
"""

import contextlib
import io
import os
import subprocess
import tarfile
from pathlib import PurePath

import docker
import images

from labkit.errors import LabError
from labkit.session import home

_PACKAGES = ("docker-compose", "docker-buildx")
_PLUGINS = "/usr/libexec/docker/cli-plugins"
_LEAST = (2, 23)  # from here on a service's configuration can stand in docker-compose.yml itself


def ready() -> None:
    """Make `docker compose` work, in what this process starts.

    Raises LabError.
    """
    if _works():
        return
    folder = home() / "docker-cli"
    os.environ["DOCKER_CONFIG"] = str(folder)
    if _works():
        return
    (folder / "cli-plugins").mkdir(parents=True, exist_ok=True)
    with contextlib.closing(docker.from_env(timeout=300)) as client:
        images.base(client)
        fetch = f"cd /tmp && apt-get download -qq {' '.join(_PACKAGES)} && for deb in *.deb; do dpkg -x $deb /; done"
        box = client.containers.create(images.BASE, ["sh", "-c", fetch], network_mode="host")
        try:
            box.start()
            code = box.wait(timeout=280)["StatusCode"]
            if code:
                raise LabError(
                    f"Compose v2 could not be fetched: apt-get ended with {code}.",
                    f"Its last words: {box.logs(tail=3).decode(errors='replace').strip()}",
                    "Install Docker's compose plugin in this system's own way, then type again: make test-docker",
                )
            chunks, _ = box.get_archive(_PLUGINS)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
                for plugin in filter(tarfile.TarInfo.isfile, tar):
                    path = folder / "cli-plugins" / PurePath(plugin.name).name
                    path.write_bytes(tar.extractfile(plugin).read())
                    path.chmod(0o755)
        finally:
            box.remove(force=True)
    if not _works():
        raise LabError(
            "`docker compose` does not work.",
            "The docker command may be missing, or too old for plugins.",
            "Install Docker's command with its compose plugin, then type again: make test-docker",
        )


def _works() -> bool:
    try:
        done = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    numbers = done.stdout.strip().removeprefix("v").split(".")[:2]
    return done.returncode == 0 and tuple(int(number) for number in numbers) >= _LEAST
