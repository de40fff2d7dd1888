"""How a worker makes a lock of a chapter: make(recipes, w, nodes, ttl_ms, step, bank). Light, as workers import it.

recipes -- the classes that the entrant names, in that order.
"""

import contextlib


def on_redis(recipes, w, nodes, ttl_ms, step, bank):
    """Its constructor takes (client, key, ttl_ms, step); the client follows the Sentinels."""
    (lock_class,) = recipes
    return lock_class(w.sentinel(nodes, timeout_s=2).primary(), "lock", ttl_ms, step=step)


def on_many(recipes, w, nodes, ttl_ms, step, bank):
    """Its constructor takes (clients, key, ttl_ms, step)."""
    (lock_class,) = recipes
    return lock_class([w.client(node, timeout_s=0.2) for node in nodes], "lock", ttl_ms, step=step)


def on_one(recipes, w, nodes, ttl_ms, step, bank):
    """Its constructor takes (client, step)."""
    (lock_class,) = recipes
    return lock_class(w.client(nodes[0], timeout_s=1), step=step)


def in_the_bank(recipes, w, nodes, ttl_ms, step, bank):
    """Its constructor takes (client, step); the accounts are reached over its own connection, its `db`."""
    (lock_class,) = recipes
    return lock_class(w.client(bank, timeout_s=1, autocommit=False), step=step)


class Watched:
    """A lock with its chapter's watchdog while it is held: recipes = (lock, watchdog)."""

    fence = None

    def __init__(self, recipes, w, nodes, ttl_ms, step, bank):
        lock_class, self.dog_class = recipes
        quiet = lambda what, **data: w.note(what, **data)  # noqa: E731 - the watchdog, a thread, must not be held
        self.lock, self.dog = on_redis((lock_class,), w, nodes, ttl_ms, quiet, bank), None
        self.client = w.sentinel(nodes, timeout_s=ttl_ms / 2000).primary()

    def acquire(self):
        if not self.lock.acquire():
            return False
        self.dog = self.dog_class(self.lock, self.client)
        self.dog.start()
        return True

    def lost(self):
        return self.dog.lost.is_set()

    def release(self):
        self.dog.stop()
        return self.lock.release()

    def close(self):
        if self.dog:
            self.dog.stop()


class Anew:
    """A lock that is made for each acquisition: its constructor takes (w, members, name, ttl_s), whole seconds."""

    def __init__(self, recipes, w, nodes, ttl_ms, step, bank):
        (lock_class,) = recipes
        self.make, self.lock = (lambda: lock_class(w, nodes, "lock", max(1, round(ttl_ms / 1000)))), None

    def acquire(self):
        self.close()
        self.lock = self.make()
        return self.lock.acquire(patience_s=0.5)

    @property
    def fence(self):
        return self.lock.fence

    def lost(self):
        return not self.lock.sure()

    def release(self):
        return self.lock.release()

    def close(self):
        for name in ("stop", "close"):  # kazoo's client needs both, etcd's has only the second
            with contextlib.suppress(Exception):
                getattr(self.lock.client, name)()
