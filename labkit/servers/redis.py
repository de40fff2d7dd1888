"""Redis: one node, on its own."""

import contextlib
import socket

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..observe import Lane
from .base import Launch, Server

_LOST = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)


class Redis(Server):
    kind = "redis"
    program = "redis-server"

    def launch(self, program, node, folder):
        config = {
            "bind": "127.0.0.1",
            "port": node.port,
            "protected-mode": "no",  # Debian's default is yes, the official image's is no
            "save": "",
            "notify-keyspace-events": "KEA",  # the observers listen
            "dir": folder,
            **node.options.get("config", {}),
        }
        return Launch([program, *(word for name, value in config.items() for word in (f"--{name}", str(value)))])

    def ready(self, node):
        try:
            with socket.create_connection((node.host, node.port), 0.5) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def client(self, host, port, *, name, timeout_s, **options):
        # redis-py retries ten times by default, which would hide every failure and cost seconds.
        return redis.Redis(
            host=host, port=port, decode_responses=True, client_name=name if name.isascii() else None,
            socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0), **options,
        )  # fmt: skip

    def lease(self, client, key):
        value, ttl_ms = client.pipeline().get(key).pttl(key).execute()
        return value, ttl_ms / 1e3 if ttl_ms >= 0 else None

    def observe(self, w, node, key):
        """Keyspace events say when, GET says who, and a poll each 5 ms makes a dead key expire in time."""
        lane = Lane(w, node, key)
        while not w.stopping:
            client = self.client(node.host, node.port, name="observer", timeout_s=0.25)
            with contextlib.suppress(*_LOST), contextlib.closing(client):
                self._follow(w, client, key, lane)
            lane.silent()

    def _follow(self, w, client, key, lane):
        events = client.pubsub(ignore_subscribe_messages=True)
        events.subscribe(f"__keyspace@0__:{key}")
        seen, known_until_ms, is_list = 0, 0.0, client.type(key) == "list"
        while not w.stopping:
            message = events.get_message(timeout=0.005)
            if message and message["data"] in ("rpush", "lpush"):
                is_list = True
            if is_list:
                new = client.lrange(key, seen, -1)
                seen += len(new)
                lane.appended(new)
            else:
                value, left_ms, (now_s, now_us) = client.pipeline().get(key).pttl(key).time().execute()
                until_ms = now_s * 1e3 + now_us / 1e3 + left_ms if left_ms >= 0 else 0.0
                renewed = value is not None and value == lane.value and until_ms > known_until_ms + 20
                if message and message["data"] == "set" and value is None and lane.value is None:
                    lane.mark("owned, too short to see by whom")
                lane.owner(value, left_ms if left_ms >= 0 else None)
                if renewed:
                    lane.mark("renewed", left_ms=left_ms)
                known_until_ms = until_ms
            lane.watching()
