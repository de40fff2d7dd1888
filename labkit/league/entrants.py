"""Who plays: each lock's name, the chapter whose recipe it is, its servers, and how a worker makes one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..errors import LabError
from ..notes import recall
from . import making, servers


@dataclass(frozen=True)
class Entrant:
    """A lock that can play. make -- see `job.compete`. counts -- its `fence` is a number that should only grow."""

    name: str
    servers: servers.Servers
    make: Callable
    counts: bool = False


@dataclass(frozen=True)
class Listed:
    """A line of the list: where a lock's recipes are, before they are loaded."""

    name: str
    servers: servers.Servers
    chapter: str
    recipes: tuple[str, ...]
    made: Callable
    counts: bool = False

    def load(self) -> Entrant:
        """Raises LabError when its chapter, or the recipe in it, is not there."""
        found = recall(self.chapter, *self.recipes)
        found = found if isinstance(found, tuple) else (found,)
        return Entrant(self.name, self.servers, partial(self.made, found), self.counts)


_REDIS, _11 = servers.REDIS, "11-decisions"
LIST = (
    Listed("Redis: SETNX, then PEXPIRE", _REDIS, "01-locks", ("FirstLock",), making.on_redis),
    Listed("Redis: given back by GET, then DEL", _REDIS, "01-locks", ("TokenLock",), making.on_redis),
    Listed("Redis: SET NX PX, script", _REDIS, "01-locks", ("SafeLock",), making.on_redis),
    Listed("Redis: the same, watchdog", _REDIS, "01-locks", ("SafeLock", "Watchdog"), making.Watched),
    Listed("Redis: the same, WAIT", _REDIS, "01-locks", ("WaitLock",), making.on_redis),
    Listed("Redis: counted by a script", _REDIS, "01-locks", ("FencedLock",), making.on_redis, True),
    Listed("redis-py's Lock", _REDIS, _11, ("RedisPyLock",), making.on_redis),
    Listed("Redlock on five", servers.FIVE, "02-redlock-debate", ("Redlock",), making.on_many),
    Listed("pottery's Redlock", servers.FIVE, "02-redlock-debate", ("PotteryLock",), making.on_many),
    Listed("etcd, three members", servers.ETCD, "03-consensus-locks", ("OneKeyLock",), making.Anew, True),
    Listed("pyetcd's Lock", servers.ETCD, "03-consensus-locks", ("PyetcdLock",), making.Anew, True),
    Listed("ZooKeeper, three members", servers.ZOOKEEPER, "03-consensus-locks", ("ZooQueue",), making.Anew, True),
    Listed("kazoo's Lock", servers.ZOOKEEPER, "03-consensus-locks", ("KazooLock",), making.Anew, True),
    Listed("PostgreSQL: advisory lock", servers.POSTGRES, _11, ("AdvisoryLock",), making.on_one),
    Listed("PostgreSQL: row lock", servers.BANK, _11, ("RowLock",), making.in_the_bank),
)


def find(names) -> list[Listed]:
    """The lines of these names, all if none is given; a part of a name will do. Raises LabError for an unknown one."""
    chosen = []
    for name in names:
        fits = [line for line in LIST if name.casefold() in line.name.casefold()]
        if not fits:
            raise LabError(
                f"No lock of the league is called {name!r}.",
                "The name may be misspelt; a part of it is enough.",
                f"Take of: {'; '.join(line.name for line in LIST)}",
            )
        chosen += [line for line in fits if line not in chosen]
    return chosen or list(LIST)
