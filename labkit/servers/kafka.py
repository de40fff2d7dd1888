"""Kafka: one broker that is its own controller (KRaft), or more brokers that the first one controls."""

import logging
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from .. import programs
from ..errors import LabError, Unsupported
from ..session import home
from .base import Launch, Server

_JAVA = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]
_CONFIG = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "log.dirs": "data",  # in the node's folder, where it is started
    # What Kafka keeps for itself has one copy, however many brokers there are.
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    # A lesson does not wait for consumers that might still come, or for one that is dead.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    # Nor long for the controller to notice that a broker is dead (by default 9 s).
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
}
VERSION = "4.1.0"
_IN_IMAGE = "/opt/kafka/libs"
_ARTIFACTS = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>labkit</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


class Kafka(Server):
    kind = "kafka"
    program = command = "java"
    ports = {"clients": 9092, "controller": 9093}
    image, image_variable = f"apache/kafka:{VERSION}", "KAFKA_IMAGE"
    memory_mb = 512
    start_s = 60.0
    linked = False  # a broker tells its clients its own address, and they go there, past any link

    def where(self):
        if not _jars().exists():
            raise Unsupported(
                "Kafka's server is not on this machine.",
                "It is in no package of this system; Maven fetches what the Kafka project publishes (45 MB, once).",
                "Type: make setup-kafka    Or look at the chapter's recorded run.",
            )
        return super().where()

    def introduce(self, nodes):
        first = nodes[0]
        for number, node in enumerate(nodes, 1):
            node.options["number"], node.options["brokers"] = number, len(nodes)
            node.options["controller"] = f"{first.host}:{first.ports['controller']}"

    def launch(self, place, node):
        address, controller = f"{node.host}:{node.port}", node.options["controller"]
        first = node.options["number"] == 1
        config = {
            **_CONFIG,
            "process.roles": "broker,controller" if first else "broker",
            "node.id": node.options["number"],
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{address}" + (f",CONTROLLER://{controller}" if first else ""),
            "advertised.listeners": f"PLAINTEXT://{address}",
            **node.options["config"],
        }
        files = {"server.properties": "".join(f"{name}={value}\n" for name, value in config.items())}
        jars = _IN_IMAGE if place.contained else _jars()
        java = [place.program, *_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
        prepare = [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "bGFia2l0LWthZmthLW9uZQ",
            "-c",
            "server.properties",
        ]
        before = (prepare,) if place.new else ()
        return Launch([*java, "kafka.Kafka", "server.properties"], files=files, before=before)

    def ready(self, node):
        """Metadata that names a broker: one has registered with the controller, and this one takes requests."""
        return self._known(node) > 0

    def formed(self, node):
        return self._known(node) == node.options["brokers"]

    def _known(self, node) -> int:
        """How many brokers it names."""
        ask = b"\x00\x03\x00\x01" + bytes(4) + b"\xff\xff" + b"\x00\x00\x00\x00"  # metadata v1, no name, no topics
        try:
            with socket.create_connection((node.host, node.port), 0.5) as sock:
                sock.sendall(len(ask).to_bytes(4) + ask)
                with sock.makefile("rb") as answer:
                    return int.from_bytes(answer.read(12)[8:])  # length, number of the request, number of brokers
        except OSError:
            return 0

    def client(self, host, port, *, name, timeout_s, **options):
        return KafkaClient(f"{host}:{port}", name, timeout_s, **options)


class KafkaClient:
    """Where a worker gets its confluent-kafka clients from, with time limits that suit a lesson.

    Settings are those of librdkafka by name, in a dict: `producer({"linger.ms": 5})`.
    """

    def __init__(self, address: str, name: str, timeout_s: float):
        self.timeout_s = timeout_s
        self._ways = {
            "bootstrap.servers": address,
            "client.id": name,
            "socket.timeout.ms": max(10, round(timeout_s * 1e3)),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 300,
        }

    def producer(self, settings: dict | None = None) -> confluent_kafka.Producer:
        """A message that is not confirmed within timeout_s fails; it is sent once. `flush()` waits for all answers."""
        limits = {"message.timeout.ms": round(self.timeout_s * 1e3), "message.send.max.retries": 0}
        return confluent_kafka.Producer({**self._ways, **limits, **(settings or {})}, logger=_quiet())

    def consumer(self, group: str, settings: dict | None = None) -> confluent_kafka.Consumer:
        """A member of a group. It begins with the oldest message, commits only when told to, and is dead after 3 s.

        (librdkafka's own defaults: the newest, each 5 s by itself, 45 s.)
        """
        habits = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        limits = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
        settings = {**self._ways, "group.id": group, **habits, **limits, **(settings or {})}
        return confluent_kafka.Consumer(settings, logger=_quiet())

    def admin(self) -> AdminClient:
        return AdminClient(self._ways, logger=_quiet())


def _quiet() -> logging.Logger:
    """Lost connections are what the course is about: they show as errors of the messages, not as lines on stderr."""
    logger = logging.getLogger("labkit.kafka")
    logger.setLevel(logging.CRITICAL)
    return logger


def _jars() -> Path:
    return home() / f"kafka-{VERSION}"


def fetch() -> Path:
    """Fetch the broker's published Java artifacts with Maven, unless they are here. Returns the folder."""
    if _jars().exists():
        return _jars()
    java = programs.need("java")
    if int(java.version.split(".")[0]) < 17:
        raise Unsupported(
            f"Java {java.version} is too old for Kafka {VERSION}, which needs 17.",
            f"This is the one that is found first: {java.path}",
            "Install a newer Java, or look at the chapter's recorded run.",
        )
    maven = shutil.which("mvn")
    if not maven:
        raise LabError(
            "Maven is not on this machine.",
            "It fetches what the Kafka project publishes; nothing else in the course needs it.",
            "Install it (Debian, Ubuntu: apt-get install maven), then type: make setup-kafka",
        )
    print(f"Fetching Kafka {VERSION} with Maven (45 MB) ...", flush=True)
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home()) as place:
        Path(place, "pom.xml").write_text(_ARTIFACTS)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
        done = subprocess.run([maven, "-q", "-B", *goal], cwd=place, capture_output=True, text=True, timeout=900)
        if done.returncode:
            last = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:2]
            raise LabError(
                f"Maven could not fetch Kafka: {' / '.join(last)[:400]}",
                "The machine may be offline, or reach no Maven repository.",
                "Mend that, then type again: make setup-kafka",
            )
        os.rename(Path(place, "jars"), _jars())
    return _jars()
