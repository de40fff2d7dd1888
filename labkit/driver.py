"""What the drivers have in common: how nodes start, side by side, and what becomes of them when one does not."""

import time

from . import links, servers
from .errors import ServerDied
from .session import Session

_LOOK_S = 0.1  # how often it is asked whether what starts is alive still
POWERS = ("pause", "kill", "restart", "cut", "delay", "cut_replication", "delay_replication", "isolate", "cut_peers")


class Driver:
    """Starts, freezes, wakes and ends servers for one session. A subclass says what they run in."""

    name: str
    here = "127.0.0.1"  # this machine's address for the servers: where the link process listens for them

    def __init__(self, session: Session):
        self._session = session

    def start(self, nodes: list) -> None:
        """Start nodes that belong together (again), wait until all serve. Raises ServerDied with the last log lines."""
        server = servers.of(nodes[0].kind)
        program = self._program(server)
        new = [node for node in nodes if not node.ports]
        for node in new:
            self._give_address(node, server, new)
        if new:
            server.introduce(new)
        for node in new if new and new[0].options.get("peer_links") else ():
            peers = [peer for peer in new if peer is not node]
            node.options["proxy"] = (self.here, links.open_proxy(self._links, node, peers, at=self.here))
        try:
            self._launch(nodes, server, program)
            self._wait(nodes, server, server.ready)
            if new:
                server.form(new)
                self._wait(new, server, server.formed)
        except BaseException:  # an interrupted cell leaves no half-made nodes behind either
            for node in nodes:
                (self._discard if node in new else self.kill)(node)
            raise
        for node in nodes:
            node.state = "running"

    def _wait(self, nodes, server, ready) -> None:
        deadline, next_look = time.monotonic() + server.start_s, time.monotonic() + _LOOK_S
        waiting = list(nodes)
        while waiting := [node for node in waiting if not ready(node)]:
            if time.monotonic() > next_look:
                for node in nodes:
                    if not self._lives(node):
                        raise self._died(node, "ended while it was starting")
                next_look = time.monotonic() + _LOOK_S
            if time.monotonic() > deadline:
                raise self._died(waiting[0], f"did not answer within {server.start_s:.0f} s")
            time.sleep(0.0005)

    def _died(self, node, how: str) -> ServerDied:
        lines = [line for line in self.log(node).splitlines() if line.strip()][-3:]
        return ServerDied(
            f"{node.name} {how}.",
            "Its last words: " + (" / ".join(lines) or "none") + ".",
            f"Look at its options ({node.options.get('config') or 'none'}), or run: python -m labkit doctor",
        )

    def forget_data(self, node) -> None:
        """Remove everything the (dead) node had on disk."""
        servers.of(node.kind).forget(node)
        self._discard(node)

    def can(self, power: str) -> bool:
        """The powers of this driver; see the table in docs/design.md."""
        return power in POWERS

    @property
    def _links(self) -> str:
        return f"{self._session.folder}/links.sock"

    def close(self) -> None:
        """Give back what the session's end does not."""
