"""Observers: what the *server* says, as a lane of its own beside what the workers believe.

An observer is a worker, so a busy kernel cannot starve it. Its events come a little after the fact (about a
millisecond), so checks never order them against the workers' events. Watching is opt-in, as reading changes the server.
"""

OBSERVER = "·"  # the first letter of an observer's name; it has no lane of its own

WATCHING = "watching"


class Lane:
    """The lane `key (node says)`: owner spans and marks, written by one observer."""

    def __init__(self, w, node, key: str):
        self.name, self.value = f"{key} ({node.name} says)", None
        self._w, self._node, self._span, self._watching = w, node, None, False
        self._mute = None

    def watching(self) -> None:
        """Say once that the watch stands, so that the experiment may go on."""
        self.heard()
        if not self._watching:
            self._watching = True
            self._w._stop_here(WATCHING)

    def owner(self, value, ttl_ms=None, **data) -> None:
        """The value is this now (None: no such key); a change closes one span and begins the next.

        data -- what the server tells with it: a revision, a transaction number.
        """
        self.heard()
        if value == self.value:
            return
        self._close()
        if value is not None:
            self._span = self._add("begin", "owner", owner=value, ttl_ms=ttl_ms, **data)
        self.value = value

    def appended(self, values) -> None:
        for value in values:
            self._add("mark", str(value), value=value)

    def mark(self, name: str, **data) -> None:
        self._add("mark", name, **data)

    def silent(self) -> None:
        """The server does not answer (or the watch ends): what was last seen is no longer known."""
        self._close()
        self.value = None
        if self._w.stopping:
            return
        if self._mute is None:
            self._mute = self._add("begin", "no answer", fault=True)
        self._w.work(0.02)  # a dead server refuses at once, and asking it takes a whole processor

    def heard(self) -> None:
        if self._mute is not None:
            self._add("end", "no answer", span=self._mute)
            self._mute = None

    def _close(self) -> None:
        if self._span is not None:
            self._add("end", "owner", span=self._span)
            self._span = None

    def _add(self, kind, name, **data) -> int:
        return self._w._recorder.add(self.name, kind, name, says=self._node.name, **data)
