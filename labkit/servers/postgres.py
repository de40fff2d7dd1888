"""PostgreSQL: one server, with an empty database of its own."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

from ..errors import LabError
from ..observe import Lane
from ..session import home
from .base import Launch, Server

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # files in its folder; the default would outlive a SIGKILL in /dev/shm
}
# Trust is enough: like all servers of a lab it listens on loopback only. No locale: the same order on every machine.
_INITDB = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--wal-segsize=1", "--no-sync"]


class Postgres(Server):
    kind = "postgres"
    program = "postgres"
    client_module = "psycopg"
    tree = True  # one process a connection, and some for its own housekeeping

    def launch(self, program, node, folder):
        """PostgreSQL refuses root; where the caller is root, it runs as nobody."""
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        as_user = []
        if account:  # a change of user drops the wish to die with the keeper, so setpriv makes it anew
            ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
            as_user = ["setpriv", *ids, "--pdeathsig=KILL"]
        data = Path(folder) / "data"
        if not data.exists():
            shutil.copytree(_template(program, as_user, account, folder), data)
        settings = {**_SETTINGS, "port": node.port, **node.options.get("config", {})}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Launch([*as_user, program, "-D", str(data), *words], user=account and account.pw_name)

    def ready(self, node):
        import psycopg

        try:
            with self.client(node.host, node.port, name="ready", timeout_s=2) as db:
                return db.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def client(self, host, port, *, name, timeout_s, **options):
        """A psycopg connection. Autocommit, said so on purpose: `with db.transaction():` makes a longer one.

        An answer that does not come within `timeout_s` raises psycopg.errors.ConnectionTimeout and closes the
        connection, as nobody knows what became of the statement. (Connecting gives up after 2 s at the earliest.)
        """
        bounded = _bounded_connection()
        bounded.answer_s = timeout_s
        settings = {"autocommit": True, "user": "postgres", "dbname": "postgres", **options}
        connection = bounded.connect(
            host=host, port=port, application_name=name, connect_timeout=max(2, round(timeout_s)),
            sslmode="disable", gssencmode="disable", **settings,
        )  # fmt: skip
        return connection

    def observe(self, w, node, key):
        """`key` is a query: its first row is asked for each 5 ms, so what lasts shorter can be missed."""
        import psycopg

        lane = Lane(w, node, key)
        while not w.stopping:
            with (
                contextlib.suppress(psycopg.OperationalError),
                self.client(node.host, node.port, name="observer", timeout_s=0.25) as db,
            ):
                while not w.stopping:
                    row = db.execute(key).fetchone()
                    lane.owner(row if row is None else row[0] if len(row) == 1 else ", ".join(map(str, row)))
                    lane.watching()
                    time.sleep(0.005)
            lane.silent()
