"""Node: one real server."""

from . import servers


class Node:
    """One real server (a process or a container): its address, role, state, client and log.

    Travels to workers as its address only; the faults are verbs of the Lab.
    """

    def __init__(self, lab, name: str, kind: str, role: str = "single", options: dict | None = None):
        self._lab, self.name, self.kind, self._role = lab, name, kind, role
        self.options = options or {}
        self.host, self.ports, self.pid, self.state = "127.0.0.1", {}, 0, "new"

    @property
    def port(self) -> int:
        """The clients' port."""
        return next(iter(self.ports.values()), 0)

    @property
    def role(self) -> str:
        """What it is now: the server is asked, as a failover changes it. While it gives no answer: what it was last."""
        if self.state == "running":
            self._role = servers.of(self.kind).role(self) or self._role
        return self._role

    def client(self, *, timeout_s: float = 2.0, **options):
        """A client for a look from the notebook: straight to the node, past all links. Never retries by itself."""
        return servers.of(self.kind).client(self.host, self.port, name="notebook", timeout_s=timeout_s, **options)

    @property
    def log(self) -> str:
        """What the server printed so far."""
        return self._lab._driver.log(self)

    def __getstate__(self):
        return {**self.__dict__, "_lab": None}

    def __repr__(self) -> str:
        return f"{self.name} {self.role} {self.host}:{self.port} {self.state}"
