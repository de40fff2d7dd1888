"""The container engine, as the laboratory uses it: the Docker SDK, with errors in three lines and everything labelled.

Run as a program it removes what is left of one session: that is how a keeper, which loads no SDK, ends one.
"""

import contextlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import requests
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, NotFound

from .errors import LabError

LABEL = "labkit."  # + session, folder, user, machine, inside
CONNECT_S = 2.0
_ANSWER_S = 30.0
_AT_ONCE = 8
_OWN_ID = re.compile(r"/containers/([0-9a-f]{64})/")


def address() -> str:
    """Where the engine listens, as the docker command itself finds it: DOCKER_HOST, else the context in use."""
    return os.environ.get("DOCKER_HOST") or ContextAPI.get_current_context().Host


class Engine:
    """A container engine that answered. Raises LabError if none does within 2 s, here and in every call."""

    def __init__(self, url: str | None = None):
        self.url = url or address()
        with told("The laboratory could not reach the container engine"):
            self._api = docker.APIClient(self.url, version="auto", timeout=CONNECT_S)
            self.version = self._api.version()["Version"]
        self._api.timeout = _ANSWER_S
        self._images: set[str] = set()

    def ask(self, what: str, call: str, *args, **options):
        """One call of the SDK's low-level client, by name; `what` begins the error: "redis-1 could not be started"."""
        with told(what):
            return getattr(self._api, call)(*args, **options)

    def has_image(self, name: str) -> bool:
        """Is it there? An image that was seen once is not looked for again."""
        if name not in self._images:
            with contextlib.suppress(NotFound), told("The images could not be looked at", NotFound):
                self._api.inspect_image(name)
                self._images.add(name)
        return name in self._images

    def sessions(self) -> dict[str, dict[str, str]]:
        """session -> the labels of something of it, for all sessions that have anything here."""
        found = {}
        for _, rows in self._everything(LABEL + "session").items():
            for row in rows:
                found.setdefault(row["Labels"][LABEL + "session"], row["Labels"])
        return found

    def remove(self, session: str) -> list[str]:
        """Remove all containers, then volumes and networks, of one session. Returns what was removed, in words."""
        everything = self._everything(f"{LABEL}session={session}")
        removed = []

        def each(kind: str, rows, remove) -> None:
            with ThreadPoolExecutor(_AT_ONCE) as together:
                names = [(row.get("Names") or [row["Name"]])[0].lstrip("/") for row in rows]
                for name, _ in zip(names, together.map(remove, names), strict=True):
                    removed.append(f"removed the {kind} {name}")

        each("container", everything["containers"], self.remove_container)
        each("volume", everything["volumes"], self.remove_volume)
        for row in everything["networks"]:
            if inside := row["Labels"].get(LABEL + "inside"):
                self._if_there("disconnect_container_from_network", inside, row["Id"], force=True)
        each("network", everything["networks"], lambda name: self._if_there("remove_network", name))
        return removed

    def remove_container(self, name: str) -> None:
        self._if_there("remove_container", name, force=True, v=True)  # with the unnamed volumes that images ask for

    def remove_volume(self, name: str) -> None:
        self._if_there("remove_volume", name)

    def _if_there(self, call: str, *args, **options) -> None:
        with contextlib.suppress(NotFound), told("Something of a lab could not be removed", NotFound):
            getattr(self._api, call)(*args, **options)

    def _everything(self, label: str) -> dict[str, list[dict]]:
        with told("What belongs to labs could not be looked at"):
            return {
                "containers": self._api.containers(all=True, filters={"label": label}),
                "volumes": self._api.volumes(filters={"label": label})["Volumes"] or [],
                "networks": self._api.networks(filters={"label": label}),
            }

    def runs(self, container: str) -> bool:
        with contextlib.suppress(NotFound), told("A container could not be looked at", NotFound):
            return self._api.inspect_container(container)["State"]["Running"]
        return False

    def own_container(self) -> str | None:
        """The id of the container that this process runs in, if it is one of this engine's."""
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        for found in dict.fromkeys(_OWN_ID.findall(mounts)):
            with contextlib.suppress(APIError), told("The container of this process could not be looked at", APIError):
                return self._api.inspect_container(found)["Id"]
        return None


@contextlib.contextmanager
def told(what: str, *as_it_is: type[Exception]):
    """Errors of the SDK within become three lines, but for those of the kinds in `as_it_is`."""
    try:
        yield
    except as_it_is:
        raise
    except (DockerException, requests.exceptions.RequestException) as error:
        raise _in_three_lines(what, error) from None


def _in_three_lines(what: str, error: Exception) -> LabError:
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    if "no space left" in text:
        return LabError(
            f"{what}: the disk of the container engine is full.",
            f"It says: {text[-200:]}",
            "See what takes the room: docker system df    and remove what you do not need.",
        )
    if isinstance(error, APIError):
        return LabError(
            f"{what}: the container engine refused.",
            f"It says: {text[-300:]}",
            "Run the cell with Lab(...) again; leftovers, if any, go with: python -m labkit clean",
        )
    causes = _causes(error)
    if any(isinstance(cause, PermissionError) for cause in causes):
        return LabError(
            "The container engine is there, and you may not use it.",
            f"Its socket ({_where()}) belongs to root and to a group, mostly 'docker', that you are not in.",
            'Type: sudo usermod -aG docker "$USER"    and log in again. Without an engine: driver="local"',
        )
    if any(isinstance(cause, (TimeoutError, requests.exceptions.Timeout)) for cause in causes) or "timed out" in text:
        return LabError(
            f"The container engine did not answer in time ({_where()}).",
            "It hangs, is just starting, or the machine is very busy.",
            'Look: docker version    and restart it (systemctl restart docker). Without an engine: driver="local"',
        )
    return LabError(
        f"No container engine answers ({_where()}).",
        "It is not installed, not running, or was stopped meanwhile; with it, the containers of its labs are gone.",
        'Start it (systemctl start docker) and run the cell with Lab(...) again. Without an engine: driver="local"',
    )


def _where() -> str:
    try:
        return address()
    except DockerException as error:  # a context that is broken
        return str(error)


def _causes(error: BaseException) -> list[BaseException]:
    """The error, and all that it was raised for, also those that are only among its arguments (urllib3 does so)."""
    found, todo = [], [error]
    while todo and len(found) < 20:
        one = todo.pop()
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            todo += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return found


def main(url: str, session: str) -> int:
    try:
        Engine(url).remove(session)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
