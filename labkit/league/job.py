"""What a worker of the league does: take the lock, read every account, think, write every account, give it back.

Several accounts stand side by side, and each checks something else, so one storm judges all of them at once.
"""

import contextlib

from .plan import IN_THE_LOCK, OUTSIDE, THOUGHT

_MISTAKES = (NameError, TypeError, AttributeError)  # never a server's fault


def compete(w, make, nodes, bank, accounts, ttl_ms: int, think_s: float, every_s: float = 0.01) -> None:
    """Withdraw 1 from every account under the lock, again and again, until the run ends.

    make -- make(w, nodes, ttl_ms, step, bank) returns a lock: acquire() without waiting, release(), and `fence`, a
    number or None. If it has a `db`, the accounts are reached over that connection. Whatever fails, all
    connections are made anew.
    accounts -- {name: (token, read, write)}; see the recipe cell of chapter 11.
    """

    def step(what, **data):
        w.mark(IN_THE_LOCK, what=what)

    while True:
        lock, db = None, None
        try:
            lock = make(w, nodes, ttl_ms, step, bank)
            db = getattr(lock, "db", None) or w.client(bank, timeout_s=1)
            while True:
                _turn(w, lock, db, accounts, think_s, every_s)
        except _MISTAKES:
            raise
        except Exception as error:
            w.note("failed", error=type(error).__name__)
        for thing in (lock, db):
            with contextlib.suppress(Exception):
                thing.close()
        w.mark(OUTSIDE)
        w.work(every_s)


def _turn(w, lock, db, accounts, think_s: float, every_s: float) -> None:
    waits = w.begin("waits")
    while not lock.acquire():
        w.mark(OUTSIDE)
        w.work(every_s)
    w.end(waits)
    with w.span("holds", lock="lock", token=lock.fence):
        durable = db.execute("SELECT nextval('tokens')").fetchone()[0]
        tokens = {"durable": durable, "own": lock.fence}
        seen = {}
        for name, (source, read, _) in accounts.items():
            if source is None or tokens[source] is not None:
                seen[name] = _read(w, db, name, read, tokens.get(source))
        w.work(think_s)
        if getattr(lock, "lost", lambda: False)():
            w.note("was told that the lock is lost")
        else:
            w.mark(THOUGHT)
            for name, balance in seen.items():
                source, _, write = accounts[name]
                if balance is not None:
                    _write(w, db, name, write, tokens.get(source), balance - 1)
    lock.release()
    w.mark(OUTSIDE)
    w.work(every_s)  # else the one that was in would be the first to ask again


def _read(w, db, name: str, sql: str, token) -> int | None:
    """None: the account refused the token."""
    row = db.execute(sql, {"name": name, "token": token}).fetchone()
    w.has_read(name, row and row[0], token=token, ok=bool(row))
    return row and row[0]


def _write(w, db, name: str, sql: str, token, new: int) -> None:
    row = db.execute(sql, {"name": name, "token": token, "new": new}).fetchone()
    w.wrote(name, new, token=token, seq=row and row[0], ok=bool(row))
