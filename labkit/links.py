"""The link process: every worker's own TCP way to every node, in user space, so that it can be cut and delayed.

A link carries bytes between a worker and a node. Its faults:

black hole  bytes vanish both ways, sockets stay open, the server sees nothing: a network partition
reset       connections are closed at once, and new ones too: a firewall that rejects
replies     requests arrive, answers vanish: the client cannot know what happened
delay       every byte arrives so much later, in order

A connection that lost bytes cannot go on, so healing a link closes it; the client makes a new one.
Why our own and not a proxy server from elsewhere: see docs/design.md.
"""

import asyncio
import contextlib
import json
import os
import resource
import socket

from .errors import LabError
from .wire import unix_address

LOOPBACK = "127.0.0.1"
CUTS = ("black hole", "reset", "replies")

_CONNECTED, _REFUSED = b"\x05\x00\x00\x01" + bytes(6), b"\x05\x05\x00\x01" + bytes(6)


class _Link:
    """One way from a worker to a node, with any number of connections."""

    def __init__(self):
        self.cut: str | None = None
        self.delay_s = {"requests": 0.0, "replies": 0.0}
        self.host, self.port = "", 0  # the node's
        self.listener: asyncio.Server | None = None
        self.pairs: set[_Pair] = set()

    def set_cut(self, how: str | None) -> None:
        self.cut = how
        for pair in list(self.pairs):
            if how == "reset" or (how is None and pair.lost):
                pair.abort()


class _Pair:
    """One connection: the worker's end, the node's end."""

    def __init__(self, link: _Link, port: int, *, told: bool = False):
        self.link, self.port, self.lost = link, port, False
        self.told = told  # whoever asked for it is told how it went, in SOCKS5's words
        self.requests, self.replies = _End(self, "requests"), _End(self, "replies")
        link.pairs.add(self)

    def abort(self) -> None:
        self.link.pairs.discard(self)
        for end in (self.requests, self.replies):
            if end.transport:
                end.transport.abort()

    async def reach_node(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.replies, self.link.host, self.port)
        except OSError:
            if self.told:
                self.requests.transport.write(_REFUSED)
                self.requests.transport.close()
            else:
                self.abort()
        else:
            if self.requests.transport.is_closing():  # aborted meanwhile: nobody will ever come through here
                self.abort()
                return
            if self.told:
                self.requests.transport.write(_CONNECTED)
            self.requests.transport.resume_reading()


class _End(asyncio.Protocol):
    """Bytes that arrive at this end go out at the other. `direction` is what arrives here."""

    def __init__(self, pair: _Pair, direction: str):
        self.pair, self.direction = pair, direction
        self.transport: asyncio.Transport | None = None
        self._due = 0.0  # when the last delayed piece is due: pieces keep their order

    @property
    def other(self) -> "_End":
        return self.pair.replies if self.direction == "requests" else self.pair.requests

    def _swallowed(self) -> bool:
        cut = self.pair.link.cut
        return cut == "black hole" or (cut == "replies" and self.direction == "replies")

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.direction == "replies":
            return
        if self.pair.link.cut == "reset":
            self.pair.abort()
        elif self.pair.link.cut == "black hole":
            self.pair.lost = True  # accepted here, and never heard of at the node
        else:
            # Not at once: in Python 3.11.2 (Debian 12's) the loop begins to read after this call, whatever it says.
            asyncio.get_running_loop().call_soon(transport.pause_reading)
            _in_background(self.pair.reach_node())

    def data_received(self, data):
        self._later(self._pass_on, data)

    def eof_received(self):
        self._later(self._pass_end)
        return True  # stay half open: the end travels like the bytes before it

    def connection_lost(self, error):
        self._later(self._pass_end)

    def _later(self, do, *args):
        delay = self.pair.link.delay_s[self.direction]
        loop = asyncio.get_running_loop()
        if not delay and loop.time() >= self._due:
            do(*args)
        else:
            self._due = max(self._due, loop.time() + delay)
            loop.call_at(self._due, do, *args)

    def _pass_on(self, data):
        if self._swallowed():
            self.pair.lost = True
        elif self.other.transport and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def _pass_end(self):
        if self._swallowed():
            self.pair.lost = True
            return
        self.pair.link.pairs.discard(self.pair)
        for end in (self.other, self):
            if end.transport and not end.transport.is_closing():
                end.transport.close()

    def pause_writing(self):
        if self.other.transport and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self):
        if self.other.transport and not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class _Proxy(asyncio.Protocol):
    """Where a member of a cluster knocks to reach its peers: SOCKS5 (RFC 1928) in front of its links to them.

    All members are told the same address of a peer, so an address does not tell who calls: each has a proxy of its own.
    """

    def __init__(self, ways: dict[int, _Link]):
        self.ways, self.heard, self.greeted = ways, b"", False  # ways: a peer's port -> the link that leads to it

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.heard += data
        if not self.greeted and len(self.heard) > 1 and len(self.heard) >= 2 + self.heard[1]:
            self.greeted, self.heard = True, self.heard[2 + self.heard[1] :]  # version, number of methods, methods
            self.transport.write(b"\x05\x00")  # without a password
        if self.greeted and len(self.heard) >= 10:  # version, connect, 0, kind of address, IPv4 address, port
            port = int.from_bytes(self.heard[8:10])
            if port not in self.ways or self.heard[:4] != b"\x05\x01\x00\x01":
                self.transport.abort()
                return
            end = _Pair(self.ways[port], port, told=True).requests
            self.transport.set_protocol(end)
            end.connection_made(self.transport)


_running: set[asyncio.Task] = set()


def _in_background(coroutine) -> None:
    task = asyncio.get_running_loop().create_task(coroutine)
    _running.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_running.discard)


def listen(path: str) -> socket.socket:
    """The Unix socket at `path` that takes commands: made before the link process is, so nobody comes too early."""
    address, folder = unix_address(path)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(512)
    finally:
        os.close(folder)
    return listener


def serve(listener: socket.socket) -> None:
    """Run the link process: commands arrive as JSON lines."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection takes two
    asyncio.run(_serve(listener))


async def _listen(at: str, protocol) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(protocol, at, 0, backlog=512)


async def _serve(commands: socket.socket) -> None:
    links: dict[tuple[str, str], _Link] = {}
    proxies: dict[str, tuple[asyncio.Server, dict[int, _Link]]] = {}

    async def obey(reader, writer):
        while line := await reader.readline():
            ask = json.loads(line)
            link = links.setdefault((ask["who"], ask["node"]), _Link())
            listener = link.listener
            if ask["op"] == "open":
                link.host, link.port = ask["host"], ask["port"]
                if not listener:
                    listener = link.listener = await _listen(
                        ask["at"], lambda link=link: _Pair(link, link.port).requests
                    )
            elif ask["op"] == "proxy":
                link.host = ask["host"]
                if ask["who"] not in proxies:
                    ways: dict[int, _Link] = {}
                    proxies[ask["who"]] = await _listen(ask["at"], lambda ways=ways: _Proxy(ways)), ways
                listener, ways = proxies[ask["who"]]
                ways.update(dict.fromkeys(ask["ports"], link))
            elif ask["op"] == "cut":
                link.set_cut(ask["how"])
            elif ask["op"] == "delay":
                link.delay_s.update(ask["delay_s"])
            port = listener.sockets[0].getsockname()[1] if listener else 0
            writer.write(json.dumps({"port": port}).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(obey, sock=commands)  # the Unix kind looks up its path, which is gone by now
    await server.serve_forever()


# -- asking the link process, from the kernel or from a worker


def _ask(path: str, **ask) -> dict:
    try:
        address, folder = unix_address(path)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(address)
                sock.sendall(json.dumps(ask).encode() + b"\n")
                with contextlib.closing(sock.makefile("rb")) as answer:
                    return json.loads(answer.readline())
        finally:
            os.close(folder)
    except (OSError, ValueError) as error:
        raise LabError(
            f"The process that carries the links does not answer: {error}.",
            "It, or the keeper of this lab, was ended from outside.",
            "Run the cell with Lab(...) again; leftovers, if any, go with: python -m labkit clean",
        ) from None


def open_link(path: str, who: str, node, *, at: str = LOOPBACK) -> int:
    """The port of `who`'s way to `node` (anything with name, host and port); `at` -- the address where it begins."""
    return _ask(path, op="open", who=who, node=node.name, host=node.host, port=node.port, at=at)["port"]


def open_proxy(path: str, member, peers, *, at: str = LOOPBACK) -> int:
    """The port of the proxy through which `member` reaches its peers, each over a link of its own.

    Their ports, but for the clients', must differ: the proxy goes by these. `at` -- the address where it listens.
    """
    for peer in peers:
        _, *ports = peer.ports.values()  # all but the clients'
        port = _ask(path, op="proxy", who=member.name, node=peer.name, host=peer.host, ports=ports, at=at)["port"]
    return port


def cut_link(path: str, who: str, node_name: str, how: str | None) -> None:
    """how: one of CUTS, or None to heal."""
    _ask(path, op="cut", who=who, node=node_name, how=how)


def delay_link(path: str, who: str, node_name: str, requests_s: float, replies_s: float) -> None:
    _ask(path, op="delay", who=who, node=node_name, delay_s={"requests": requests_s, "replies": replies_s})
