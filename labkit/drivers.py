"""Which driver a lab gets."""

import contextlib
import os

from . import servers
from .errors import LabError
from .local import Local
from .session import Session

VARIABLE = "LABKIT_DRIVER"  # what 'auto' stands for, where it is set

_SIGNS = ("/var/run/docker.sock", os.path.expanduser("~/.docker/config.json"))  # the second may name another socket


def choose(driver: str, session: Session):
    """The driver of a name; 'auto' is docker when its engine answers and has the Redis image, else local."""
    if driver == "auto":
        driver = os.environ.get(VARIABLE) or "auto"
    if driver == "local":
        return Local(session)
    if driver == "docker":
        return _docker(session)
    if driver == "auto":
        return _docker_if_ready(session) or Local(session)
    raise LabError(
        f"There is no driver {driver!r}.",
        "A driver is how servers are run: as containers ('docker'), or as processes ('local').",
        'Write Lab("name", driver="auto"), which takes what this machine has.',
    )


def engine_expected() -> bool:
    """Is there any sign of a container engine? If not, its SDK is not even loaded."""
    return bool(os.environ.get("DOCKER_HOST")) or any(map(os.path.exists, _SIGNS))


def _docker(session: Session):
    from .containers import Docker  # its SDK takes a quarter of a second to import
    from .engine import Engine

    return Docker(session, Engine())


def _docker_if_ready(session: Session):
    """None if no engine answers, or without its images. Where there is no socket nothing is asked, or imported."""
    if not engine_expected():
        return None
    from .containers import Docker, image_of
    from .engine import Engine

    with contextlib.suppress(LabError):
        engine = Engine()
        if engine.has_image(image_of(servers.of("redis"))):
            return Docker(session, engine)
    return None
