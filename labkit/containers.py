"""The docker driver: servers as containers of their official images, in a private network of the lab's own.

Workers, observers and links stay processes beside the notebook, as with the local driver. A node's address is that of
its container, the only one that works alike from the host and from a container beside it; no port is published. All
that a node writes lies on a volume of its own, which outlives the container, as a disk outlives a crash.
"""

import contextlib
import io
import ipaddress
import os
import random
import shlex
import signal
import socket
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docker.types import IPAMConfig, IPAMPool, LogConfig, Mount, Ulimit

from . import servers
from .clock import Clock
from .driver import Driver
from .engine import LABEL, Engine
from .errors import LabError
from .processes import descendants, stop_all
from .session import Session, this_machine

_FOLDER = "/lab"  # where a node's volume is, in a container whose image has no place for it
_CLOCK = "clock"
_CLOCK_LIBRARY = "/opt/labkit/clock.so"
_RANGE_VARIABLE, _RANGE = "LABKIT_NETWORKS", "10.200.0.0/13"
_TRIES = 8
_OURS, _FIRST_NODE, _NODES = 2, 10, 240  # last numbers of addresses: a lab container's, and the nodes'
_AT_ONCE = 8
_BOOKS_S = 2.0
_NOBODY = "65534:65534"
# Compose marks the images that it builds as its project's, and containers inherit that: `down` would take ours along.
_NO_COMPOSE = {"com.docker.compose.project": ""}


class Docker(Driver):
    """Servers as containers."""

    name = "docker"

    def __init__(self, session: Session, engine: Engine):
        super().__init__(session)
        self._engine = engine
        session.use_engine(engine.url)
        inside = engine.own_container()
        self._labels = {
            f"{LABEL}session": session.id, f"{LABEL}folder": str(session.folder), f"{LABEL}user": str(os.getuid()),
            f"{LABEL}machine": this_machine(), f"{LABEL}inside": inside or "",
        }  # fmt: skip
        self._network = self._make_network()
        self.here = self._address_here(inside)
        self._addresses = iter(range(_FIRST_NODE, _FIRST_NODE + _NODES))
        self._ids: dict[str, str] = {}  # node -> its container, while it has one
        self._has_data: set[str] = set()
        self._users: dict[str, dict[str, tuple[int, int]]] = {}  # image -> its users' names and numbers
        self._frozen_by_engine: set[str] = set()
        self._late_clocks: set[str] = set()  # of nodes so frozen: nothing can be written in them

    # -- the network
    def _make_network(self) -> ipaddress.IPv4Network:
        """A private network that leads nowhere else, at addresses that no other network of the engine has."""
        told = os.environ.get(_RANGE_VARIABLE, _RANGE)
        try:
            wide = ipaddress.ip_network(told)
            known = _known_here()
            free = [net for net in wide.subnets(new_prefix=24) if not any(net.overlaps(other) for other in known)]
        except ValueError as error:
            raise LabError(
                f"{_RANGE_VARIABLE} names no range of networks: {error}.",
                "The laboratory takes a small network of 256 addresses out of it, for each lab.",
                f"Type, before starting Jupyter: export {_RANGE_VARIABLE}={_RANGE}",
            ) from None
        refused = "all of it is in use on this machine"
        for net in random.sample(free, min(_TRIES, len(free))):
            pool = IPAMPool(subnet=str(net), gateway=str(net[1]))
            try:
                with_it = IPAMConfig(pool_configs=[pool])
                self._engine.ask(
                    "A network could not be made", "create_network", self._session.id, driver="bridge", internal=True,
                    ipam=with_it, labels=self._labels,
                )  # fmt: skip
                return net
            except LabError as error:
                if "overlaps" not in str(error) and "conflicts" not in str(error):
                    raise
                refused = error.why
        raise LabError(
            f"No network is free for the lab in {told}.",
            f"Others have taken these addresses, a VPN or labs that crashed: {refused}",
            f"Type: python -m labkit clean    or give it another range: export {_RANGE_VARIABLE}=172.30.0.0/16",
        )

    def _address_here(self, inside: str | None) -> str:
        """The address at which containers reach this process: the network's gateway, or this one's own in it."""
        gateway = str(self._network[1])
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((gateway, 0))
            return gateway
        if inside:
            mine = str(self._network[_OURS])
            what = "The lab's container could not join its network"
            self._engine.ask(what, "connect_container_to_network", inside, self._session.id, ipv4_address=mine)
            return mine
        raise LabError(
            "The addresses of containers cannot be reached from here.",
            f"The engine ({self._engine.url}) runs in a machine of its own, as it does on macOS and Windows.",
            'Use the lab that runs in a container: docker compose up    Or without an engine: driver="local"',
        )

    # -- starting
    def _program(self, server) -> str:
        return server.command

    def _image(self, server) -> str:
        """Raises LabError if it is not here: a pull can take minutes, and is the learner's decision."""
        if server.clock and self.can("clock"):
            return _clock_image()
        name = image_of(server)
        if not self._engine.has_image(name):
            raise LabError(
                f"The image {name} is not on this machine.",
                "It was not fetched yet, or it is called otherwise here.",
                f"Type: docker pull {name}    or name another: export {server.image_variable}=…",
            )
        return name

    def _give_address(self, node, server, together) -> None:
        number = next(self._addresses, None)
        if number is None:
            raise LabError(
                f"A lab has {_NODES} nodes at most.",
                "Each one had an address of its own in the lab's network.",
                "Make a new lab: the old one's nodes go with it.",
            )
        node.host = str(self._network[number])
        (clients, port), *others = server.ports.items()
        # Members that reach each other through a proxy are told apart by these.
        node.ports = {clients: port, **{purpose: usual + together.index(node) for purpose, usual in others}}

    def _launch(self, nodes, server, program) -> None:
        image = self._image(server)
        with ThreadPoolExecutor(_AT_ONCE) as together:
            list(together.map(lambda node: self._launch_one(node, server, program, image), nodes))

    def _launch_one(self, node, server, program, image) -> None:
        folder = _folder(server)
        place = servers.Place(program, folder, new=node.name not in self._has_data, contained=True)
        launch = server.launch(place, node)
        argv, env, files = launch.argv, dict(launch.env), {name: text.encode() for name, text in launch.files.items()}
        if launch.before:
            steps = [*map(shlex.join, launch.before), f"exec {shlex.join(argv)}"]
            argv = ["sh", "-c", " && ".join(steps)]
        if server.clock and image == _clock_image():
            env |= {"LD_PRELOAD": _CLOCK_LIBRARY, "LABKIT_CLOCK": f"{folder}/{_CLOCK}"}
            if not (place.new and self.clock(node).right):  # the library makes the file of one that is right
                files[_CLOCK] = self.clock(node).path.read_bytes()
        if not place.new:
            self._remove_container(node)
        name, engine = self._box(node), self._engine
        what = f"{node.name} could not be started"
        self._ids[node.name] = engine.ask(
            what, "create_container", image, name=name, entrypoint=argv[:1], command=argv[1:], environment=env,
            user=server.user, working_dir=folder, labels={**self._labels, **_NO_COMPOSE}, hostname=node.name,
            networking_config=self._endpoint(node),
            host_config=self._limits(
                server.memory_mb, mounts=[Mount(folder, name, type="volume", labels=self._labels)]
            ),
        )["Id"]  # fmt: skip
        self._has_data.add(node.name)
        if files or not server.folder:  # it takes a seventh of the start
            engine.ask(what, "put_archive", name, "/", _packed(folder, files, *self._ids_of(name, image, server.user)))
        engine.ask(what, "start", name)
        node.pid = engine.ask(what, "inspect_container", name)["State"]["Pid"]

    def _limits(self, memory_mb: int, **more) -> dict:
        return self._engine.ask(
            "A container could not be described", "create_host_config", network_mode=self._session.id,
            mem_limit=f"{memory_mb}m", cap_drop=["ALL"], security_opt=["no-new-privileges"],
            ulimits=[Ulimit(name="nofile", soft=16384, hard=16384)],  # Erlang makes a table for as many as there may be
            log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "16m"}), **more,
        )  # fmt: skip

    def _endpoint(self, node) -> dict:
        ask = self._engine.ask
        at = ask("A network could not be described", "create_endpoint_config", ipv4_address=node.host)
        return ask("A network could not be described", "create_networking_config", {self._session.id: at})

    def _ids_of(self, container: str, image: str, user: str) -> tuple[int, int]:
        """(user id, group id) of a user, who may be a name that only the image knows."""
        if user[0].isdigit():
            uid, gid = user.split(":")
            return int(uid), int(gid)
        if image not in self._users:
            what = "The image's users could not be read"
            pieces, _ = self._engine.ask(what, "get_archive", container, "/etc/passwd")
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar, tar.extractfile("passwd") as table:
                rows = [line.split(":") for line in table.read().decode().splitlines()]
                self._users[image] = {name: (int(uid), int(gid)) for name, _, uid, gid, *_ in rows}
        if user not in self._users[image]:
            raise LabError(
                f"The image {image} knows no user {user!r}.",
                "It is not the official one, nor made like it.",
                "Name another image, or unset the variable that names this one.",
            )
        return self._users[image][user]

    def _lives(self, node) -> bool:
        return self._state(node).get("Running", False)

    def _state(self, node) -> dict:
        if node.name not in self._ids:
            return {}
        return self._engine.ask(f"{node.name} could not be looked at", "inspect_container", self._box(node))["State"]

    # -- faults
    def pause(self, node) -> None:
        """SIGSTOP where this machine shows the container's processes and lets us signal them, else by the engine."""
        if self._reaches(node):
            stop_all(node.pid, servers.of(node.kind).tree)
        else:
            self._by_engine(node, "pause")
            self._frozen_by_engine.add(node.name)

    def resume(self, node) -> None:
        if node.name in self._frozen_by_engine:
            self._by_engine(node, "unpause")
            self._frozen_by_engine.discard(node.name)
            if node.name in self._late_clocks:
                self._late_clocks.discard(node.name)
                self._push_clock(node, self.clock(node).pieces())
        elif not self._reaches(node):
            raise self._died(node, "is not running any more")
        else:
            below = descendants(node.pid) if servers.of(node.kind).tree else []
            for pid in [node.pid, *below][::-1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _by_engine(self, node, verb: str) -> None:
        """The engine's own books come a little late: right after `unpause` it may hold a container for paused still."""
        deadline = time.monotonic() + _BOOKS_S
        while True:
            try:
                return self._engine.ask(f"The engine could not {verb} {node.name}", verb, self._box(node))
            except LabError as error:
                if not self._lives(node):
                    raise self._died(node, "is not running any more") from None
                if "paused" not in error.why or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def _reaches(self, node) -> bool:
        """Is node.pid a process of its container (another machine's or namespace's number would be a stranger's)?"""
        try:
            mine = self._ids[node.name] in Path(f"/proc/{node.pid}/cgroup").read_text()
            os.kill(node.pid, 0)
        except (OSError, KeyError):
            return False
        return mine

    def kill(self, node) -> None:
        """SIGKILL. Then another container that does nothing takes its address, which would fall silent otherwise: as a
        machine does whose server has died, it refuses connections at once.
        """
        if node.name not in self._ids:
            return
        what = f"{node.name} could not be killed"
        try:
            self._engine.ask(what, "kill", self._box(node))
        except LabError:
            if self._lives(node):
                raise
        self._remove_container(node)
        with_sleep = image_of(servers.of("redis"))  # not every image has that command
        if self._engine.has_image(with_sleep):
            self._engine.ask(
                what, "create_container", with_sleep, name=self._box(node), entrypoint=["sleep"], command=["infinity"],
                user=_NOBODY, labels={**self._labels, **_NO_COMPOSE}, networking_config=self._endpoint(node),
                host_config=self._limits(memory_mb=16),
            )  # fmt: skip
            self._engine.ask(what, "start", self._box(node))

    def _remove_container(self, node) -> None:
        """What it printed is kept: it is the beginning of what its successor prints."""
        if node.name in self._ids:
            self._log_path(node).write_text(self.log(node), encoding="utf-8")
            del self._ids[node.name]
            self._frozen_by_engine.discard(node.name)
            self._late_clocks.discard(node.name)
        self._engine.remove_container(self._box(node))

    def _discard(self, node) -> None:
        self._remove_container(node)
        self._engine.remove_volume(self._box(node))
        self._has_data.discard(node.name)

    # -- the wall clock
    def clock(self, node) -> Clock:
        """The node's wall clock: a file of ours, and what is written to it goes to the container's too."""
        path = self._session.folder / f"{node.name}.clock"
        return Clock(path, also=lambda pieces: self._push_clock(node, pieces))

    def _push_clock(self, node, pieces) -> None:
        """Write in place, as the server has that file mapped. Who does not run finds it right when it starts."""
        if node.name in self._frozen_by_engine:
            self._late_clocks.add(node.name)
        elif node.state != "dead":
            how, file = "printf '{}' | dd of={} bs=1 seek={} conv=notrunc", f"{_folder(servers.of(node.kind))}/{_CLOCK}"
            steps = [how.format("".join(f"\\{byte:03o}" for byte in piece), file, at) for at, piece in pieces]
            code, said = self._run_in(node, ["sh", "-c", " && ".join(steps)])
            if code:
                raise LabError(
                    f"The clock of {node.name} could not be set: {said.strip()[-200:]}",
                    "A command in its container failed; the server may have ended, or the disk be full.",
                    f"Look at its last words: print({node.name.replace('-', '_')}.log)",
                )

    def _run_in(self, node, argv: list[str]) -> tuple[int, str]:
        """(exit code, output) of a command that runs beside the server, in its container."""
        ask, what = self._engine.ask, f"A command could not be run in {node.name}"
        number = ask(what, "exec_create", self._box(node), argv)["Id"]
        said = ask(what, "exec_start", number).decode(errors="replace")
        return ask(what, "exec_inspect", number)["ExitCode"], said

    def moves_clock(self, node) -> bool:
        """Has the server's process really loaded the library?"""
        if not self.can("clock") or not servers.of(node.kind).clock:
            return False
        return self._run_in(node, ["grep", "-q", _CLOCK_LIBRARY, "/proc/1/maps"])[0] == 0

    # -- looks
    def log(self, node) -> str:
        earlier = ""
        with contextlib.suppress(OSError):
            earlier = self._log_path(node).read_text(encoding="utf-8")
        if node.name in self._ids:
            with contextlib.suppress(LabError):
                now = self._engine.ask(f"The log of {node.name} could not be read", "logs", self._box(node))
                return earlier + now.decode(errors="replace")
        return earlier

    def banner(self) -> str:
        return f"containers (engine {self._engine.version})"

    def can(self, power: str) -> bool:
        return self._engine.has_image(_clock_image()) if power == "clock" else super().can(power)

    def _box(self, node) -> str:
        """The name of its container, and of its volume."""
        return f"{self._session.id}-{node.name}"

    def _log_path(self, node) -> Path:
        return self._session.folder / f"{node.name}.log"


def image_of(server) -> str:
    """The image that its nodes are made of; an environment variable may name another than the official one."""
    return os.environ.get(server.image_variable) or server.image


def _clock_image() -> str:
    row = servers.of("redis")
    return os.environ.get(row.clock_image_variable) or row.clock_image


def _folder(server) -> str:
    return server.folder or _FOLDER


def _packed(folder: str, files: dict[str, bytes], uid: int, gid: int) -> bytes:
    """A tar archive of the folder with these files in it, all belonging to that user."""
    folders = {str(above) for name in files for above in Path(name).parents} | {"."}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in [*sorted(folders), *files]:
            entry = tarfile.TarInfo(os.path.normpath(f"{folder[1:]}/{name}"))
            entry.uid, entry.gid, entry.mtime = uid, gid, int(time.time())
            if name in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.size = len(files[name])
                tar.addfile(entry, io.BytesIO(files[name]))
    return packed.getvalue()


def _known_here() -> list[ipaddress.IPv4Network]:
    """The networks that this machine has a way to: an engine may be unaware of a VPN's."""
    known = []
    with contextlib.suppress(OSError), open("/proc/net/route", encoding="ascii") as table:
        for _, to, _, _, _, _, _, mask, *_ in [line.split() for line in table][1:]:
            number, bits = (int.from_bytes(bytes.fromhex(word), "little") for word in (to, mask))
            if bits:
                known.append(ipaddress.ip_network((number, bits.bit_count())))
    return known
