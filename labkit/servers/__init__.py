"""The table of servers the laboratory can drive. Adding a backend is adding a module and a row here."""

from functools import cache
from importlib import import_module

from .base import Launch, Place, Server

# kind -> its class, in the module of that name: imported on first use, so that nobody loads a client it does not use.
_TABLE = {
    "redis": "Redis",
    "sentinel": "Sentinel",
    "cluster": "Cluster",
    "postgres": "Postgres",
    "etcd": "Etcd",
    "zookeeper": "ZooKeeper",
    "nginx": "Nginx",
    "rabbitmq": "RabbitMQ",
    "kafka": "Kafka",
}


@cache
def of(kind: str) -> Server:
    """The server of a kind ('redis', …)."""
    return getattr(import_module(f".{kind}", __name__), _TABLE[kind])()


def kinds() -> tuple[str, ...]:
    return tuple(_TABLE)


__all__ = ["Launch", "Place", "Server", "kinds", "of"]
