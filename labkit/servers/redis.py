"""Redis: nodes on their own, or a primary with replicas.

Each replica logs in at its primary as an ACL user of its own, named after it, and so do the Sentinels. A fault takes
the rights away from some of them: a cut hits exactly one replica, or a primary serves clients and nobody else.
"""

import contextlib
import re
import socket

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import LabError
from .base import Launch, Server
from .redis_watch import LOST, KeyWatch

PASSWORD = "labkit"  # no secret: the servers of a lab are reached from this machine only
SENTINELS = "sentinels"  # the user as which all Sentinels log in
_LOGIN = f"on >{PASSWORD}"
_REPLICATE = f"{_LOGIN} +psync +replconf +ping"
# The rights that Redis's own documentation lists for Sentinels; the channel is where they find each other.
_SUPERVISE = (
    f"{_LOGIN} allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname"
    " +client|kill +script|kill"
)
_NAME = re.compile("[!-~]+")  # what CLIENT SETNAME takes
_LOOK_S = 0.25


class Redis(Server):
    kind = "redis"
    program = command = "redis-server"
    ports = {"main": 6379}
    image, image_variable = "redis:7.4.2", "REDIS_IMAGE"
    user, folder = "redis", "/data"
    clock = True
    # The same, with the library of labkit/clock built in.
    clock_image, clock_image_variable = "labkit/redis-clock:7.4.2", "CLOCK_IMAGE"

    def introduce(self, nodes):
        if nodes[0].role != "primary":
            return
        for node in nodes:  # any of them may become the primary, so each knows all the users
            node.options["members"] = [n.name for n in nodes]
        nodes[0].options["replicas"] = [(n.host, n.port) for n in nodes[1:]]

    def launch(self, place, node):
        own = self.own_files(node)
        config = {
            "bind": node.host,
            "port": node.port,
            "protected-mode": "no",  # Debian's default is yes, the official image's is no
            "save": "",
            "notify-keyspace-events": "KEA",  # the observers listen
            "dir": place.folder,
            **self.settings(node),
            **node.options.get("config", {}),
        }
        words = [word for name, value in config.items() for word in (f"--{name}", str(value))]
        files = dict(own) if place.new else {}
        if "members" in node.options:
            users = "".join(f"user {name} {rules}\n" for name, rules in users_of(node).items())
            files["users.acl"] = f"user default on nopass ~* &* +@all\n{users}"
        return Launch([place.program, *(["redis.conf"] if "redis.conf" in own else []), *words], files=files)

    def settings(self, node) -> dict[str, str]:
        """The settings of a node that belongs with others."""
        if "members" not in node.options:
            return {}
        return {
            "aclfile": "users.acl",
            "masteruser": node.name,
            "masterauth": PASSWORD,
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",  # five seconds by default, to wait for more replicas
        }

    def own_files(self, node) -> dict[str, str]:
        """The files that the server itself rewrites later, and how they begin: here, whose replica it is."""
        if "members" not in node.options:
            return {}
        primary = node.options.get("primary")  # known after the first start
        return {"redis.conf": f"replicaof {primary[0]} {primary[1]}\n" if primary else ""}

    def ready(self, node):
        return say(node, "PING").startswith("+PONG")

    def form(self, nodes):
        """Tell the replicas of their primary: a replica started with it could come too early, and would wait 1 s."""
        primary, *replicas = nodes
        for replica in replicas if primary.role == "primary" else ():
            self.follow(replica, primary.host, primary.port)

    def formed(self, node):
        """A primary: each replica has its link up, and WAIT says that what is written arrives at all of them."""
        replicas = node.options.get("replicas", ())
        with contextlib.suppress(*LOST):
            linked = all(self._linked(*address) for address in replicas)
            return linked and (not replicas or self._arrives(node, len(replicas)))
        return False

    def _linked(self, host: str, port: int) -> bool:
        with self.client(host, port, name="labkit", timeout_s=_LOOK_S) as client:
            return client.info("replication").get("master_link_status") == "up"

    def _arrives(self, primary, replicas: int) -> bool:
        with primary.client() as client:
            client.publish("labkit", "")  # goes to replicas, and leaves nothing in the data
            if client.wait(replicas, 10) == replicas:
                return True
            # A replica's first acknowledgement can come before the primary has noticed that its child, which sent the
            # data, has ended; it is overlooked, and the next comes a second later. A new connection goes on at once.
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            return False

    def role(self, node):
        if "members" not in node.options:
            return None
        told = say(node, "ROLE")[:32]
        return "primary" if "master" in told else "replica" if "slave" in told else None

    def follow(self, replica, host: str, port: int) -> None:
        """Make it a replica of the server at this address, over restarts too."""
        with taken_by(replica), replica.client() as client:
            client.replicaof(host, port)
            client.config_rewrite()
        replica.options["primary"] = (host, port)

    def promote(self, replica) -> None:
        """Make it a primary, over restarts too."""
        self.follow(replica, "NO", "ONE")

    def in_sync(self, replica) -> bool:
        """One look: its link to its primary is up."""
        return self._linked(replica.host, replica.port)

    def follows(self, replica) -> tuple[str, int] | None:
        """(host, port) of the server that it replicates now; None: it is no replica."""
        with taken_by(replica), replica.client() as client:
            role, *rest = client.role()
        return (rest[0], rest[1]) if role == "slave" else None

    def settle_users(self, node) -> None:
        """Make a running server know exactly the users of `users_of`. Who lost the right to log in is thrown out."""
        users = users_of(node)
        with taken_by(node), node.client() as client:
            for name in set(client.acl_users()) - {"default", *users}:
                client.acl_deluser(name)
            for name, rules in users.items():
                client.execute_command("ACL", "SETUSER", name, "reset", *rules.split())

    def client(self, host, port, *, name, timeout_s, **options):
        return redis.Redis(host=host, port=port, **{**client_options(name, timeout_s), **options})

    def lease(self, client, key):
        value, ttl_ms = client.pipeline().get(key).pttl(key).execute(raise_on_error=False)
        if isinstance(value, redis.exceptions.ResponseError):
            value = "no string"  # its value cannot be told, but it can expire or be deleted
        return value, ttl_ms / 1e3 if ttl_ms >= 0 else None

    def observe(self, w, node, key):
        KeyWatch(w, node, key, lambda: self._observer(node)).run()

    def _observer(self, node, **options):
        return self.client(node.host, node.port, name="observer", timeout_s=_LOOK_S, **options)


def client_options(name: str, timeout_s: float) -> dict:
    """redis-py retries ten times by default, which would hide every failure and cost seconds."""
    return {
        "decode_responses": True,
        "client_name": name if _NAME.fullmatch(name) else None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }


def say(node, command: str) -> str:
    """The beginning of a server's answer to one command, '' if there is none: a look that takes 0.2 ms."""
    try:
        with socket.create_connection((node.host, node.port), _LOOK_S) as sock:
            sock.sendall(command.encode() + b"\r\n")
            return sock.recv(4096).decode(errors="replace")
    except OSError:
        return ""


@contextlib.contextmanager
def taken_by(node):
    """The commands within must be taken. Raises LabError when the server does not answer, or refuses."""
    try:
        yield
    except redis.exceptions.RedisError as error:
        raise LabError(
            f"{node.name} did not take the command: {error}",
            "It may be overloaded, still loading its data, or something outside the laboratory ended or stopped it.",
            f"Look at its last words: print({node.name.replace('-', '_')}.log)",
        ) from None


def users_of(node) -> dict[str, str]:
    """The users, beside the default one, that a member of a group should know now: {name: rules}.

    Faults change it: node.options["cut"] names the replicas that have no rights here, node.options["isolated"] is True
    while nobody but clients has any. The Sentinels' user always stays, if without rights: were it gone, they would go
    on as the default user, who may do anything.
    """
    if node.options.get("isolated"):
        return {SENTINELS: f"{_LOGIN} allchannels"}
    cut = node.options.get("cut", ())
    users = {name: _REPLICATE for name in node.options["members"] if name != node.name and name not in cut}
    return {**users, SENTINELS: _SUPERVISE}
