"""What a Redis says about one key: the observer's reader.

A string is an owner (a lock, a counter). Of a list, each value that was appended; of a stream, a sorted set, a set or a
hash, how many are in it. What happens and is undone between two looks, 5 ms apart, is not seen.
"""

import contextlib

import redis

from ..observe import Lane

LOST = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
_COUNT = {"stream": "XLEN", "zset": "ZCARD", "set": "SCARD", "hash": "HLEN"}


class KeyWatch:
    """One key on one server, watched until the run ends: over freezes, deaths and failovers of the server."""

    def __init__(self, w, node, key: str, connect):
        """connect -- makes a fresh client; it must give up within a fraction of a second."""
        self._w, self._key, self._connect, self._lane = w, key, connect, Lane(w, node, key)
        self._kind = "none"  # what the key was when it was last there
        self._length, self._until_ms = 0, 0.0

    def run(self) -> None:
        while not self._w.stopping:
            client = self._connect()
            with contextlib.suppress(*LOST), contextlib.closing(client):
                self._follow(client)
            self._lane.silent()

    def _follow(self, client) -> None:
        """Keyspace events say when, a look says what, and a look each 5 ms makes a dead key expire in time."""
        events = client.pubsub(ignore_subscribe_messages=True)
        events.subscribe(f"__keyspace@0__:{self._key}")
        while not self._w.stopping:
            message = events.get_message(timeout=0.005)
            self._look(client, message["data"] if message else "")
            self._lane.watching()

    def _look(self, client, event: str) -> None:
        # One piece on the wire, which a server works off in one go; and a key of another kind fails its own line only.
        looks = client.pipeline(transaction=False).type(self._key).get(self._key).pttl(self._key).time()
        kind, value, left_ms, now = looks.execute(raise_on_error=False)
        if isinstance(kind, Exception):  # a member of a Cluster that does not hold the key (any more)
            kind, value, left_ms = "none", None, -2
        if kind != "none":
            self._kind = kind
        self._lane.heard()
        if self._kind in ("none", "string"):
            self._owner(value if kind == "string" else None, left_ms, now, event)
        else:
            self._lane.owner(None)  # it may have been a string before
            self._many(client)

    def _owner(self, value, left_ms: int, now: tuple[int, int], event: str) -> None:
        lane, until_ms = self._lane, now[0] * 1e3 + now[1] / 1e3 + left_ms if left_ms >= 0 else 0.0
        renewed = value is not None and value == lane.value and until_ms > self._until_ms + 20
        if event == "set" and value is None and lane.value is None:
            lane.mark("owned, too short to see by whom")
        lane.owner(value, left_ms if left_ms >= 0 else None)
        if renewed:
            lane.mark("renewed", left_ms=left_ms)
        self._until_ms = until_ms

    def _many(self, client) -> None:
        before = self._length
        if self._kind != "list":
            self._length = client.execute_command(_COUNT[self._kind], self._key)
            if self._length != before:
                self._lane.mark(f"{self._length} in it", length=self._length)
            return
        looks = client.pipeline(transaction=False).llen(self._key).lrange(self._key, before, -1)
        self._length, new = looks.execute()
        if self._length < before:  # taken by consumers; or lost, when another server's data took the place of its own
            self._lane.mark(f"{before - self._length} gone", length=self._length)
        else:
            self._lane.appended(new)
