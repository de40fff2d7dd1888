"""PostgreSQL: one server, with an empty database of its own."""

import contextlib
import os
import pwd
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

import psycopg

from ..errors import ServerDied
from ..observe import Lane
from ..session import home
from .base import Launch, Server

_SETTINGS = {
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # files in its own folder; the default is one that outlives a SIGKILL
}
# No password: like every server of a lab it is reached from this machine only.
_WHO_MAY = "host all all samenet trust\n"
# No locale: one sorting order on all machines.
_INITDB = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--wal-segsize=1", "--no-sync")


class Postgres(Server):
    kind = "postgres"
    program = command = "postgres"
    ports = {"main": 5432}
    image, image_variable = "postgres:17.6", "POSTGRES_IMAGE"
    user = "postgres"  # initdb asks for its name
    start_s = 60.0  # in a container, initdb comes first
    tree = True  # one process a connection, and some that keep house

    def launch(self, place, node):
        data, account, before = f"{place.folder}/data", None, ()
        if os.geteuid() == 0 and not place.contained:
            account = pwd.getpwnam("nobody")  # PostgreSQL refuses to run as root
        if place.new and place.contained:
            before = (["initdb", *_INITDB, "-D", data],)
        elif place.new:
            template = _template(place.program, account, place.folder)
            before = (["cp", "-a", "--reflink=auto", f"{template}/data", data],)
        settings = {
            **_SETTINGS, "listen_addresses": node.host, "port": node.port, "hba_file": f"{place.folder}/pg_hba.conf",
            **node.options.get("config", {}),
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        argv = [*_as(account), place.program, "-D", data, *words]
        return Launch(argv, files={"pg_hba.conf": _WHO_MAY}, before=before)

    def ready(self, node):
        try:
            with self.client(node.host, node.port, name="ready", timeout_s=2) as db:
                return db.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def client(self, host, port, *, name, timeout_s, **options):
        """A psycopg connection; autocommit is on, `with db.transaction():` makes several statements one.

        An answer that does not come within `timeout_s` raises psycopg.errors.ConnectionTimeout and closes the
        connection: whether the statement happened is unknown. A connection itself is waited for 2 s at least.
        """
        how = {"user": "postgres", "dbname": "postgres", "autocommit": True, **options}
        db = _Impatient.connect(
            host=host, port=port, application_name=name, connect_timeout=max(2, round(timeout_s)),
            sslmode="disable", gssencmode="disable", **how,
        )  # fmt: skip
        db.answer_s = timeout_s
        return db

    def observe(self, w, node, key):
        """`key` is a query. Its first row is asked for each 5 ms, so what lasts shorter may be missed."""
        lane, seen = Lane(w, node, key), False
        while not w.stopping:
            with contextlib.suppress(psycopg.OperationalError):
                db = self.client(node.host, node.port, name="observer", timeout_s=0.25)
                with contextlib.closing(db):
                    while not w.stopping:
                        try:
                            row = db.execute(key).fetchone()
                        except psycopg.ProgrammingError:  # the table went, with lost data
                            if not seen:  # no: the query is misspelt
                                raise
                            row = None
                        lane.owner(row[0] if row and len(row) == 1 else row and ", ".join(map(str, row)))
                        lane.watching()
                        seen = True
                        time.sleep(0.005)
            lane.silent()


class _Impatient(psycopg.Connection):
    """psycopg itself waits for an answer as long as the connection stands, also for one that a cut link swallowed."""

    answer_s = 2.0

    def wait(self, gen, interval=0.1, timeout=None):
        if timeout is not None:  # a caller with a bound of its own: notifies(timeout=…)
            return super().wait(gen, interval, timeout)
        deadline = time.monotonic() + self.answer_s
        try:
            return super().wait(gen, interval, self.answer_s)
        except psycopg.OperationalError:
            if time.monotonic() < deadline:
                raise
            self.close()
            raise psycopg.errors.ConnectionTimeout(f"no answer within {self.answer_s:g} s") from None


def _as(account) -> list[str]:
    """What to put before a command to run it as that user. PDEATHSIG is lost with the change of user: made again."""
    if account is None:
        return []
    ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return ["setpriv", *ids, "--pdeathsig=KILL"]


def _template(program: str, account, folder: str) -> Path:
    """The folder of an empty cluster, made once for all labs: to copy it takes a tenth of the time.

    It belongs to whom the servers run as, in a folder that only the caller can enter. Labs that begin at the same time
    each make one, and the first to finish puts it in place.
    """
    initdb = Path(program).with_name("initdb")
    made_by = f"{initdb} {initdb.stat().st_mtime_ns} {_INITDB} {account}"
    template = home() / f"postgres-{zlib.crc32(made_by.encode()):08x}"
    if template.exists():
        return template
    with tempfile.TemporaryDirectory(dir=folder) as place, tempfile.TemporaryDirectory(dir=home()) as mine:
        if account:
            os.chown(place, account.pw_uid, account.pw_gid)
        command = [*_as(account), initdb, *_INITDB, "-D", f"{place}/data"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise ServerDied(
                "PostgreSQL could not make its first database.",
                f"Its last words: {' / '.join(done.stderr.strip().splitlines()[-3:])}",
                "The folder of the servers must be reachable for others: export LABKIT_TMP=/a/folder/of/yours",
            )
        made = Path(mine) / "template"
        made.mkdir(mode=0o700)
        subprocess.run(["cp", "-a", f"{place}/data", made], check=True, timeout=120)
        subprocess.run([initdb, "--sync-only", "-D", made / "data"], capture_output=True, check=True, timeout=120)
        with contextlib.suppress(OSError):  # another lab was faster
            made.rename(template)
    return template
