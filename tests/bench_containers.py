"""The rows of `make bench` about containers, where an engine answers: beside the bare SDK, and testcontainers."""

import contextlib
import importlib.util
import os
import secrets
import statistics

import docker
from bench import in_lab, quiet_lab, timed
from docker.types import Mount

from labkit import LabError, drivers, servers
from labkit.containers import image_of
from labkit.engine import Engine, address
from labkit.node import Node


def here() -> bool:
    """Does an engine answer that has all images?"""
    if not drivers.engine_expected():
        return False
    with contextlib.suppress(LabError):
        engine = Engine()
        return all(engine.has_image(image_of(servers.of(kind))) for kind in ("redis", "etcd", "zookeeper"))
    return False


def image() -> str:
    """The image of a lab's Redis, which is the one with the clock where that is there."""
    row = servers.of("redis")
    clocked = os.environ.get(row.clock_image_variable) or row.clock_image
    return clocked if Engine().has_image(clocked) else image_of(row)


def bare() -> float:
    """The same container as a lab's, on a volume and in a network of its own, as the SDK makes it, until it answers."""
    client, name, node = docker.DockerClient(address()), f"bench-{secrets.token_hex(4)}", Node(None, "bare", "redis")
    network = client.networks.create(name, internal=True)
    command = ["redis-server", "--protected-mode", "no", "--save", "", "--dir", "/data"]
    made = []

    def start() -> None:
        made.append(
            client.containers.run(
                image(), command, detach=True, name=name, network=name, mem_limit="256m", cap_drop=["ALL"],
                security_opt=["no-new-privileges"], mounts=[Mount("/data", name)],
            )
        )  # fmt: skip
        made[0].reload()
        node.host, node.ports = made[0].attrs["NetworkSettings"]["Networks"][name]["IPAddress"], {"main": 6379}
        while not servers.of("redis").ready(node):
            pass

    try:
        return timed(start)
    finally:
        for container in made:
            container.remove(force=True, v=True)
        client.volumes.get(name).remove()
        network.remove()
        client.close()


def by_testcontainers() -> float:
    """As it comes: with its reaper, which sees to what a lab's keeper does. TESTCONTAINERS_RYUK_DISABLED: without."""
    from testcontainers.core.container import Reaper
    from testcontainers.redis import RedisContainer

    made = RedisContainer(image())
    try:
        return timed(made.start)
    finally:
        made.stop()
        Reaper.delete_instance()


def paused(by_engine: bool):
    """Milliseconds of one pause: by a signal where this machine shows the container's processes, or by the engine."""

    def once() -> float:
        with quiet_lab("bench", "docker") as lab:
            node, taken = lab.redis(), []
            if by_engine:
                lab._driver._reaches = lambda node: False
            for _ in range(10):
                taken.append(timed(lambda: lab.pause(node)))
                lab.resume(node)
            return statistics.median(taken)

    return once


class Eleven:
    """5 Redis, 3 etcd and 3 ZooKeeper in one lab: how long they take to serve, and then to be gone."""

    def start(self) -> float:
        with quiet_lab("bench", "docker") as lab:
            started = timed(lambda: (lab.redis(5), lab.etcd(3), lab.zookeeper(3)))
            self.closed = timed(lab.close)
        return started

    def close(self) -> float:
        """Of the lab that `start` measured just before."""
        return self.closed


def rows() -> list[tuple]:
    eleven = Eleven()
    return [
        ("one Redis container", in_lab(lambda lab: lab.redis(), "docker"), "bare SDK", bare, 1.2),
        ("  with three Sentinels", in_lab(lambda lab: lab.redis(replicas=1, sentinels=3), "docker"), "ms", 4000, None),
        ("  eleven nodes", eleven.start, "ms", 6000, None),
        ("  and all closed", eleven.close, "ms", 4000, None),
        ("  pause by signal", paused(by_engine=False), "ms", 2, None),
        ("  pause by the engine", paused(by_engine=True), "ms", 25, None),
    ]


def peers() -> dict[str, list[tuple]]:
    if importlib.util.find_spec("testcontainers"):
        return {"one Redis container": [("testcontainers", by_testcontainers)]}
    return {}
