"""`make bench`: how fast the laboratory is, beside the floor (the bare program, same flags) and its peers.

Everything is measured in this one run, in turns (A B C A B C …), and told as medians and ratios: a single figure on a
shared machine is noise. Peers are measured where they are installed: pip install pifpaf pytest-redis testcontainers.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from labkit import Lab, servers
from labkit.node import Node
from labkit.record import Recorder

ROUNDS = int(os.environ.get("ROUNDS", "7"))


def timed(do) -> float:
    """Milliseconds that `do` took."""
    start = time.perf_counter()
    do()
    return (time.perf_counter() - start) * 1e3


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Bare:
    """The same programs with the same flags, started by a plain Popen and asked as the laboratory asks."""

    def __init__(self, kind: str, n: int = 1):
        self.server, self.folder = servers.of(kind), tempfile.mkdtemp(prefix="bench-", dir="/var/tmp")
        self.nodes = [Node(None, f"{kind}-{i}", kind, options={"config": {}, "peer_links": False}) for i in range(n)]
        for node in self.nodes:
            node.ports = {purpose: free_port() for purpose in self.server.ports}
        self.server.introduce(self.nodes)
        self.program, self.running = self.server.where(), []

    def start(self) -> None:
        for node in self.nodes:
            folder = Path(self.folder, node.name)
            folder.mkdir()
            launch = self.server.launch(servers.Place(self.program, str(folder)), node)
            for path, text in launch.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.running.append(subprocess.Popen(launch.argv, cwd=folder, env={**os.environ, **launch.env}, **quiet))
        waiting, deadline = self.nodes, time.monotonic() + 30
        while waiting := [node for node in waiting if not self.server.ready(node)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"a bare {self.server.kind} did not answer")
            time.sleep(0.0005)

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def quiet_lab(name: str, driver: str = "local"):
    with contextlib.redirect_stdout(None):
        lab = Lab(name, driver=driver)
    with lab:
        yield lab


def bare(kind: str, n: int = 1):
    def once() -> float:
        servers_alone = Bare(kind, n)
        try:
            return timed(servers_alone.start)
        finally:
            servers_alone.stop()

    return once


def in_lab(make, driver: str = "local"):
    """Milliseconds for nodes in a lab that stands; they are ended afterwards, so that the machine stays as it was."""

    def once() -> float:
        with quiet_lab("bench", driver) as lab:
            return timed(lambda: make(lab))

    return once


def pause_and_resume() -> float:
    with quiet_lab("bench") as lab:
        node = lab.redis()
        return statistics.median(timed(lambda: (lab.pause(node), lab.resume(node))) for _ in range(20))


def idle(w):
    """What a worker does that does nothing."""


def one_worker() -> float:
    with quiet_lab("bench") as lab, lab.run("bench"):
        return statistics.median(timed(lambda i=i: lab.worker(f"W{i}", idle)) for i in range(20))


def one_event() -> float:
    with tempfile.NamedTemporaryFile() as file:
        recorder = Recorder(file.name)
        return timed(lambda: [recorder.add("A", "mark", "tick") for _ in range(10_000)]) / 10_000


def by_pifpaf(module: str, driver: str, **options):
    """pifpaf's ZooKeeper wants a zkServer.sh, which Debian's library package has not."""

    def once() -> float:
        made = getattr(importlib.import_module(f"pifpaf.drivers.{module}"), driver)(port=free_port(), **options)
        try:
            with contextlib.redirect_stdout(None):
                return timed(made.setUp)
        finally:
            made.cleanUp()

    return once


def by_pytest_redis() -> float:
    from pytest_redis.executor import RedisExecutor

    with tempfile.TemporaryDirectory() as folder:
        program = shutil.which("redis-server")
        server = RedisExecutor(program, 16, 60, "notice", "127.0.0.1", free_port(), datadir=Path(folder))
        try:
            return timed(server.start)
        finally:
            server.stop()


def peers() -> dict[str, list[tuple]]:
    """what -> (name, a function that gives milliseconds), for the peers that are installed."""
    found: dict[str, list[tuple]] = {}
    if importlib.util.find_spec("pifpaf"):
        found["one Redis"] = [("pifpaf", by_pifpaf("redis", "RedisDriver"))]
        if shutil.which("etcdctl"):  # it asks with that (Debian's etcd-client); three in a row clash over ports
            found["1 etcd"] = [("pifpaf", by_pifpaf("etcd", "EtcdDriver", peer_port=free_port()))]
    if importlib.util.find_spec("pytest_redis"):
        found.setdefault("one Redis", []).append(("pytest-redis", by_pytest_redis))
    return found


def table() -> list[tuple]:
    """(what, how it is measured here, against what, how that is measured or its milliseconds, bound of the ratio)."""
    one_redis = in_lab(lambda lab: lab.redis())
    rows = [
        ("one Redis", one_redis, "bare process", bare("redis"), 1.5),
        ("five Redis", in_lab(lambda lab: lab.redis(n=5)), "one Redis", one_redis, 2.0),
        ("primary and replica", in_lab(lambda lab: lab.redis(replicas=1)), "ms", 300, None),
        ("with three Sentinels", in_lab(lambda lab: lab.redis(replicas=1, sentinels=3)), "ms", 1500, None),
        ("pause and resume", pause_and_resume, "ms", 2, None),
        ("a worker ready", one_worker, "ms", 15, None),
        ("an event", one_event, "ms", 0.01, None),
    ]
    for kind in ("etcd", "zookeeper"):
        with contextlib.suppress(Exception):
            servers.of(kind).where()
            for n in (1, 3):
                made = in_lab(lambda lab, kind=kind, n=n: getattr(lab, kind)(n))
                rows.append((f"{n} {kind}", made, "bare process", bare(kind, n), 1.3))
    return rows


def main() -> int:
    import bench_containers

    held, rows, rivals = True, table(), peers()
    if bench_containers.here():
        rows += bench_containers.rows()
        rivals |= bench_containers.peers()
    taken = {(what, who): [] for what, _, against, *_ in rows for who in ("here", against)}
    taken |= {(what, name): [] for what, known in rivals.items() for name, _ in known}
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
        for what, here, against, other, _ in rows:
            taken[what, "here"].append(here())
            if callable(other):
                taken[what, against].append(other())
            for name, rival in rivals.get(what, ()):
                try:
                    taken[what, name].append(rival())
                except Exception as error:  # a peer that does not run here is no fault of ours
                    print(f"{name} could not do {what}: {type(error).__name__}", file=sys.stderr)
    print(f"{'what':24}{'here, ms':>10}  beside")
    for what, _, against, other, bound in rows:
        mine = statistics.median(taken[what, "here"])
        if callable(other):
            floor = statistics.median(taken[what, against])
            ratio = statistics.median(a / b for a, b in zip(taken[what, "here"], taken[what, against], strict=True))
            good, told = ratio <= bound, f"{against} {floor:.1f} ms, ratio {ratio:.2f} (at most {bound})"
        else:
            good, told = mine <= other, f"at most {other} ms"
        for name, _ in rivals.get(what, ()):
            told += f"; {name} {statistics.median(taken[what, name]):.1f} ms" if taken[what, name] else ""
        print(f"{what:24}{mine:10.3f}  {told}{'' if good else '   NOT HELD'}")
        held &= good
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
