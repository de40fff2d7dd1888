"""docker-compose.yml is the map of the laboratory: it agrees with the other files, and it runs (`--driver docker`)."""

import json
import os
import re
import socket
import subprocess
import tomllib
import urllib.request
from functools import cache
from pathlib import Path

import pytest
import yaml

from labkit import programs, servers
from labkit.servers import kafka

ROOT = Path(__file__).resolve().parent.parent
PROFILES = {"locks", "redlock", "consensus", "queues", "streams", "availability", "gateway", "database"}
FOR_THE_COURSE = {"lab", "engine", "clock-image"}  # those that `docker compose up` starts
HELD_IN_MEMORY = re.compile(r"\d+[mg]")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text()


@cache
def compose() -> dict:
    return yaml.safe_load(text("docker-compose.yml"))


@cache
def project() -> dict:
    return tomllib.loads(text("pyproject.toml"))["project"]


def images() -> dict[str, str]:
    return {name: image for name, image in VARIABLE.findall(text("docker-compose.yml")) if name.endswith("_IMAGE")}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def service(name: str):
    return pytest.param(name, compose()["services"][name], id=name)


SERVICES = [service(name) for name in compose()["services"]]


# -- agreement
def test_a_variable_has_one_default_wherever_it_stands():
    defaults = {}
    for name, default in VARIABLE.findall(text("docker-compose.yml")):
        assert defaults.setdefault(name, default) == default


def test_the_images_are_those_of_the_table_of_servers():
    rows = [servers.of(kind) for kind in servers.kinds()]
    expected = {row.image_variable: row.image for row in rows}
    expected |= {row.clock_image_variable: row.clock_image for row in rows if row.clock}
    given = images()
    given.pop("PYTHON_IMAGE")  # what the lab itself is built on
    assert given == expected


def test_the_lab_and_its_gate_know_every_image():
    variables = {f"${{{name}:-{image}}}" for name, image in images().items() if name != "PYTHON_IMAGE"}
    lab, gate = compose()["services"]["lab"], compose()["services"]["engine"]
    assert {value for name, value in lab["environment"].items() if name.endswith("_IMAGE")} == variables
    assert all(f"${{{name}:-" in lab["environment"][name] for name in images() if name != "PYTHON_IMAGE")
    assert set(gate["environment"]["IMAGES"].split()) == variables


@pytest.mark.parametrize("kind", servers.kinds())
def test_an_image_is_no_older_than_what_the_laboratory_asks_for(kind):
    row = servers.of(kind)
    if kind == "kafka":  # the same whichever way it comes; the row's program is Java
        assert row.image.endswith(f":{kafka.VERSION}")
    else:
        assert numbers(row.image.rpartition(":")[2]) >= numbers(programs.named(row.program).least)


def test_a_server_of_every_kind_is_in_the_map():
    used = {VARIABLE.match(entry["image"])[1] for entry in compose()["services"].values() if "$" in entry["image"]}
    assert used == set(images()) - {"PYTHON_IMAGE"}


def test_the_clock_image_is_redis_of_the_same_version():
    assert images()["CLOCK_IMAGE"].rpartition(":")[2] == images()["REDIS_IMAGE"].rpartition(":")[2]
    assert f"ARG REDIS_IMAGE={images()['REDIS_IMAGE']}\n" in text("docker/clock.Dockerfile")


def test_the_labs_image_is_of_the_projects_version_and_python():
    assert compose()["services"]["lab"]["image"] == f"labkit/lab:{project()['version']}"
    assert compose()["services"]["engine"]["image"] == compose()["services"]["lab"]["image"]
    python = images()["PYTHON_IMAGE"]
    assert f"ARG PYTHON_IMAGE={python}\n" in text("docker/Dockerfile")
    assert numbers(python.partition(":")[2])[:2] >= numbers(project()["requires-python"])


@pytest.mark.parametrize("name", ["docker/Dockerfile", "environment.yml", "Makefile"])
def test_what_is_installed_is_an_extra_of_the_project(name):
    asked = {extra for group in re.findall(r"-e \"?\.\[([\w,]+)\]", text(name)) for extra in group.split(",")}
    assert {"queues", "database", "libraries"} <= asked <= set(project()["optional-dependencies"])


def test_environment_yml_asks_for_the_same_versions():
    wanted = dict(re.findall(r"^  - (\S+?)(?:>=(\S+))?$", text("environment.yml"), re.MULTILINE))
    assert wanted["python"] == project()["requires-python"].removeprefix(">=")
    assert wanted["redis-server"] == programs.named("redis-server").least


def test_each_image_has_a_stand_in():
    made = {path.name.removesuffix(".Dockerfile") for path in (ROOT / "docker" / "standin").glob("*.Dockerfile")}
    assert {f"{kind.upper()}_IMAGE" for kind in made} | {"CLOCK_IMAGE"} == set(images())


# -- safety
@pytest.mark.parametrize("name, entry", SERVICES)
def test_a_service_keeps_to_the_rules(name, entry):
    image = VARIABLE.sub(r"\2", entry["image"])
    assert re.search(r":v?\d+\.\d+", image), "an exact tag"
    assert "container_name" not in entry and not entry.get("privileged") and "cap_add" not in entry
    assert HELD_IN_MEMORY.fullmatch(entry["mem_limit"])
    assert set(entry.get("profiles", ())) <= PROFILES
    assert bool(entry.get("profiles")) == (name not in FOR_THE_COURSE)
    assert all(port.startswith("127.0.0.1:") for port in entry.get("ports", ()))
    assert ("door" in entry.get("networks", ())) == ("ports" in entry)
    if entry.get("network_mode") != "none":
        assert entry["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        assert entry["networks"]
        assert entry["security_opt"] == ["no-new-privileges:true"]


def test_every_profile_has_services():
    assert {profile for entry in compose()["services"].values() for profile in entry.get("profiles", ())} == PROFILES


def test_networks_are_private_but_for_the_one_with_ports():
    assert [name for name, network in compose()["networks"].items() if not network.get("internal")] == ["door"]


def test_only_the_gate_has_the_engines_socket():
    with_it = [name for name, entry in compose()["services"].items() if "docker.sock" in str(entry.get("volumes"))]
    assert with_it == ["engine"]


def test_the_lab_is_not_root():
    assert compose()["services"]["lab"]["user"] == "${LAB_USER:-1000:1000}"


# -- running
class Compose:
    """`docker compose` on a project of its own, with ports that are free now."""

    def __init__(self, name: str):
        ports = {f"{what}_PORT": str(free_port()) for what in ("LAB", "RABBITMQ", "NGINX")}
        self.name, self.port = name, ports["LAB_PORT"]
        self.env = {**os.environ, **ports, "DOCKER_SOCKET": os.environ["DOCKER_HOST"].removeprefix("unix://")}
        self.env.pop("LAB_USER", None)

    def __call__(self, *words: str, timeout_s: float = 240) -> str:
        command = ["docker", "compose", "--project-name", self.name, *words]
        done = subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def left(self) -> str:
        """The ids of all that is of this project."""
        label = f"label=com.docker.compose.project={self.name}"
        asked = (("ps", "-aq"), ("network", "ls", "-q"), ("volume", "ls", "-q"))
        return "".join(
            subprocess.run(
                ["docker", *words, "--filter", label], env=self.env, capture_output=True, text=True, check=True
            ).stdout
            for words in asked
        )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def up(driver):
    if driver != "docker":
        pytest.skip("needs a container engine, and images: make test-docker")
    run = Compose(f"labkit-test-{os.getpid()}")
    yield run
    run("--profile", "*", "down", "--volumes", "--timeout", "5")
    assert run.left() == ""


def test_every_server_of_the_map_gets_healthy(up):
    names = [name for name in compose()["services"] if name not in FOR_THE_COURSE]
    up("--profile", "*", "up", "--detach", "--wait", *names)
    rows = [json.loads(line) for line in up("ps", "--format", "json").splitlines()]
    assert {row["Service"]: row["Health"] for row in rows} == dict.fromkeys(names, "healthy")
    published = {port["URL"] for row in rows for port in row["Publishers"] or () if port["PublishedPort"]}
    assert published == {"127.0.0.1"}
    told = up("exec", "-T", "sentinel-1", "redis-cli", "--json", "sentinel", "master", "main")
    assert json.loads(told)["flags"] == "master"


@pytest.mark.timeout(900)
def test_up_alone_gives_the_course(up):
    up("build", "--quiet", "lab", timeout_s=600)  # the clock image has been made ready
    up("up", "--detach", "--wait", "--no-build")
    link = re.search(r"http://127\.0\.0\.1:\S+", up("logs", "--no-log-prefix", "lab"))[0]
    assert f":{up.port}/" in link
    with urllib.request.urlopen(link, timeout=30) as page:
        assert page.status == 200
    assert up("exec", "-T", "lab", "id", "-u").strip() == "1000"
    assert "ok" in up("exec", "-T", "lab", "python", "-m", "labkit", "run", "01", "--quick")
    asked = "import docker; docker.from_env().containers.run('labkit/lab:0.1.0', 'true', volumes=['/:/machine'])"
    refused = up("exec", "-T", "lab", "sh", "-c", f'python -c "{asked}" 2>&1 || true')
    assert "the course's gate does not let this through" in refused
