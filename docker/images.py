"""The images of the laboratory's servers: the official ones where a registry answers, else stand-ins built here.

A stand-in holds the same program from Debian's packages (Kafka: from what its project publishes for Maven), under the
commands and paths of the official image. Which images there are is read from docker-compose.yml.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import engine
import requests

from labkit.engine import told
from labkit.errors import LabError
from labkit.servers import kafka

_HERE = Path(__file__).resolve().parent
BASE = "labkit-standin/base:13"  # the recipes name it too
_SUITE = "trixie"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_CERTIFICATES = "/usr/local/share/ca-certificates"
_MADE_FROM = "labkit.recipe"  # the label of an image that tells the recipe it was made from
_ASK_S, _WORK_S = 15, 900
_PACKAGES = {  # whose version is the stand-in's
    "python": "python3",
    "redis": "redis-server",
    "etcd": "etcd-server",
    "zookeeper": "libzookeeper-java",
    "nginx": "nginx",
    "rabbitmq": "rabbitmq-server",
    "postgres": "postgresql-17",
}
# How this machine reaches its mirror, in its own words: apt in a container needs the same.
_WAY_TO_MIRROR = re.compile(r'Acquire::(https?::.*(Proxy|Verify)|Check-).* ".+";', re.IGNORECASE)


def official() -> dict[str, str]:
    """{variable: the image it stands for where nobody set it}, from docker-compose.yml."""
    compose = (_HERE.parent / "docker-compose.yml").read_text()
    return dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", compose))


def ready() -> dict[str, str]:
    """Pull or build what is missing. Returns {variable: image}, and prints which image stands in for which.

    Raises LabError.
    """
    wanted = {variable: os.environ.get(variable) or image for variable, image in official().items()}
    clock = wanted.pop("CLOCK_IMAGE")
    with (
        told("The images were made ready"),
        contextlib.closing(docker.from_env(timeout=_WORK_S)) as client,
        ThreadPoolExecutor() as threads,
    ):
        here = dict(zip(wanted, threads.map(lambda image: _get(client, image), wanted.values()), strict=True))
        for variable in wanted:
            if variable in os.environ and not here[variable]:
                raise _not_there(variable)
        lacking = [_kind(variable) for variable in wanted if not here[variable]]
        images = wanted | (_stand_ins(client, threads, lacking) if lacking else {})
        if "CLOCK_IMAGE" not in os.environ:
            redis = images["REDIS_IMAGE"]
            clock = clock if here["REDIS_IMAGE"] else f"labkit-standin/clock:{redis.rpartition(':')[2]}"
            with _folder(_HERE / "clock.Dockerfile", _HERE.parent / "labkit" / "clock" / "shim.c") as folder:
                _build(client, clock, folder, REDIS_IMAGE=redis)
        elif not _present(client, clock):
            raise _not_there("CLOCK_IMAGE")
    images["CLOCK_IMAGE"] = clock
    for variable, image in official().items():
        chosen = images[variable]
        print(f"    {image:36} {'itself' if chosen == image else chosen}", flush=True)
    return images


def _kind(variable: str) -> str:
    return variable.removesuffix("_IMAGE").lower()


def _not_there(variable: str) -> LabError:
    return LabError(
        f"The image {os.environ[variable]} is not here, and cannot be pulled.",
        f"The variable {variable} names it: the name may be misspelt, or its registry out of reach.",
        f"Pull or build it, or unset the variable; then type again: {engine.AGAIN}",
    )


def _present(client: docker.DockerClient, image: str) -> bool:
    with contextlib.suppress(docker.errors.ImageNotFound):
        return bool(client.images.get(image))
    return False


def _get(client: docker.DockerClient, image: str) -> bool:
    """Is the image here, or was it pulled? A registry that does not answer soon counts as none."""
    if _present(client, image):
        return True
    try:
        with contextlib.closing(docker.from_env(timeout=_ASK_S)) as impatient:
            impatient.images.get_registry_data(image)
    except (docker.errors.DockerException, requests.RequestException):
        return False
    print(f"Pulling {image} ...", flush=True)
    try:
        return bool(client.images.pull(image))
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise LabError(
            f"{image} could not be pulled: {error}",
            "The disk of the engine may be full, or the line to the registry broke.",
            f"Mend that, then type again: {engine.AGAIN}",
        ) from None


# -- stand-ins
def _stand_ins(client: docker.DockerClient, threads: ThreadPoolExecutor, kinds: list[str]) -> dict[str, str]:
    """{variable: image} of the stand-ins of these kinds."""
    base(client)
    packages = [_PACKAGES[kind] for kind in kinds if kind in _PACKAGES]
    shown = client.containers.run(BASE, ["apt-cache", "show", *packages], network_mode="none", remove=True).decode()
    versions = dict(re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (?:\d+:)?([\d.]+)", shown, re.MULTILINE))

    def make(kind: str) -> str:
        if kind == "kafka":
            engine.install("mvn", "maven")
            jars = kafka.fetch()
            version = jars.name.removeprefix("kafka-")
            parts = [jars, _HERE / "standin" / "kafka-server-start.sh", _HERE / "standin" / "kafka-storage.sh"]
        else:
            version = versions[_PACKAGES[kind]]
            parts = list((_HERE / "standin").glob(f"{kind}*.sh"))
        image = f"labkit-standin/{kind}:{version}"
        with _folder(_HERE / "standin" / f"{kind}.Dockerfile", *parts) as folder:
            _build(client, image, folder)
        return image

    return {f"{kind.upper()}_IMAGE": image for kind, image in zip(kinds, threads.map(make, kinds), strict=True)}


@contextlib.contextmanager
def _folder(recipe: Path, *parts: Path) -> Iterator[Path]:
    """A folder with nothing in it but a Dockerfile and what it copies."""
    with tempfile.TemporaryDirectory(prefix="labkit-image-") as folder:
        shutil.copy(recipe, Path(folder, "Dockerfile"))
        for part in parts:
            (shutil.copytree if part.is_dir() else shutil.copy2)(part, Path(folder, part.name))
        yield Path(folder)


def _build(client: docker.DockerClient, image: str, folder: Path, **arguments: str) -> None:
    """Build an image, unless it was made from just this already."""
    contents = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    made_from = _sum(b"".join([*contents, repr(arguments).encode()]))
    if _is_made_from(client, image, made_from):
        return
    try:
        client.images.build(
            path=str(folder), tag=image, buildargs=arguments, labels={_MADE_FROM: made_from}, network_mode="host",
            rm=True, forcerm=True,
        )  # fmt: skip
    except docker.errors.BuildError as error:
        last = [line for entry in error.build_log for line in entry.get("stream", "").splitlines() if line.strip()][-4:]
        raise LabError(
            f"The image {image} could not be built: {error.msg}",
            f"The last lines: {' / '.join(last)[-600:]}",
            f"If packages were not found: docker image rm {BASE}    Then type again: {engine.AGAIN}",
        ) from None


def base(client: docker.DockerClient) -> None:
    """Make BASE, unless it is here: Debian's smallest system, with its package lists and the way to a mirror.

    Raises LabError.
    """
    options = [
        "--quiet", "--mode=root", "--variant=minbase", "--skip=cleanup/apt/lists", f"--keyring={_KEYRING}",
        "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", '--aptopt=APT::Install-Recommends "false";',
    ]  # fmt: skip
    lines = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout.splitlines()
    options += [f"--aptopt={line}" for line in lines if _WAY_TO_MIRROR.fullmatch(line)]
    if list(Path(_CERTIFICATES).glob("**/*.crt")):  # whom this machine trusts besides: its mirror, or pip's index
        options += ["--include=ca-certificates", f"--customize-hook=copy-in {_CERTIFICATES} /usr/local/share"]
        options += ['--customize-hook=chroot "$1" update-ca-certificates']
    made_from = _sum(" ".join([*options, _SUITE]).encode())
    if _is_made_from(client, BASE, made_from):
        return
    engine.install("mmdebstrap", "mmdebstrap", "debian-archive-keyring")
    print("Building what stands in for images that cannot be had here (two minutes, once) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="labkit-image-") as folder:
        tar = Path(folder, "base.tar")
        done = subprocess.run(["mmdebstrap", *options, _SUITE, tar, _mirror()], capture_output=True, text=True)
        if done.returncode:
            raise LabError(
                f"No base for the stand-ins: mmdebstrap ended with {done.returncode}.",
                f"Its last words: {' / '.join(done.stderr.strip().splitlines()[-3:])[-600:]}",
                f"Is Debian's mirror within reach (apt-get update)? Then type again: {engine.AGAIN}",
            )
        repository, _, tag = BASE.partition(":")
        label = [f"LABEL {_MADE_FROM}={made_from}"]
        client.api.import_image_from_file(str(tar), repository=repository, tag=tag, changes=label)


def _sum(contents: bytes) -> str:
    return f"{zlib.crc32(contents):08x}"


def _is_made_from(client: docker.DockerClient, image: str, recipe: str) -> bool:
    return _present(client, image) and client.images.get(image).labels.get(_MADE_FROM) == recipe


def _mirror() -> str:
    """Where this machine itself gets Debian from."""
    form = "$(ORIGIN) $(COMPONENT) $(LABEL) $(REPO_URI)"
    asked = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        if line.startswith("Debian main Debian "):  # not Debian-Security, which is a label of its own
            return line.split()[3]
    raise LabError(
        "No registry has the official images, and stand-ins cannot be built on this system.",
        "They are built from Debian's packages, and apt-get knows no mirror of Debian here.",
        f"Pull or load the images that docker-compose.yml names; then type again: {engine.AGAIN}",
    )
