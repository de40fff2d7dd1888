"""Lab and Run: real servers, real workers, real faults, and the record of what happened."""

import atexit
import contextlib
import os
import pickle
import threading
import time

from . import drivers, servers
from .errors import LabError, WaitError
from .faults import Faults
from .node import Node
from .observe import OBSERVER, WATCHING
from .peers import Peers
from .record import LAB, Recorder, Timeline
from .replication import Replication
from .servers import topology
from .session import Session
from .worker import Worker

_open: dict[str, "Lab"] = {}
_MISTAKES = (NameError, TypeError, AttributeError, LabError)  # never 'not yet'


class Run:
    """One experiment: `with lab.run("title") as e:` owns its workers, watchers, faults and its stretch of the record.

    Leaving it, also by an exception, ends the workers and heals the faults; nodes stay, and a killed node stays dead.
    For an experiment that the learner drives over several cells: `e = lab.run("title").open()` … `e.close()`.
    """

    def __init__(self, lab: "Lab", title: str):
        self.title, self._lab, self._start, self._stop, self._frozen = title, lab, None, None, None
        self.workers: dict[str, Worker] = {}

    def open(self) -> "Run":
        self._lab._begin_run(self)
        return self

    def close(self) -> None:
        self._lab._end_run(self)

    def __enter__(self):
        return self.open()

    def __exit__(self, *exc):
        self.close()

    @property
    def timeline(self) -> Timeline:
        """The record: as it is now while the run goes on, frozen afterwards."""
        if self._start is None:
            return Timeline(title=self.title)
        if self._frozen is None:
            now = Timeline.load(self._lab.record, self._start, self._stop, self.title)
            if self._stop is None:
                return now
            self._frozen = now
        return self._frozen

    def draw(self, verdict=None, **how):
        """The picture of this run; see `labkit.draw.timeline`."""
        return self.timeline.draw(verdict, **how)

    def __repr__(self) -> str:
        t = self.timeline
        return f"Run({self.title}, {len(t.events)} events, {t.seconds:.1f} s{'' if self._stop else ', going on'})"


class Lab(Faults, Replication, Peers):
    """One laboratory: a driver, its nodes, its faults. Make one a notebook; a new one of the same name closes the old.

    driver -- "docker" (containers), "local" (processes) or "auto": docker where its engine and images are, else local.
    seed -- makes `random` in the workers repeat.
    """

    def __init__(self, name: str = "lab", driver: str = "auto", seed: int = 7):
        if name in _open:
            _open[name].close()
            print(f"(the earlier lab {name!r} was closed)")
        start = time.perf_counter()
        self.name, self.seed, self.nodes, self.run_now = name, seed, [], None
        self._session = Session(name, seed)
        try:
            self._driver = drivers.choose(driver, self._session)
        except BaseException:
            self._session.close()
            raise
        self.record = self._session.record
        self._recorder = Recorder(self.record)
        self._verbs = threading.RLock()  # the panel's verbs may come from another thread
        self._faults: dict[tuple[str, str], list] = {}  # (lane, fault) -> [span id, how to heal or None]
        self._observers = 0
        _open[name] = self
        self._pid = os.getpid()
        atexit.register(self.close)
        print(f"Lab {name}: {self._driver.banner()}, ready in {(time.perf_counter() - start) * 1e3:.0f} ms")

    # -- nodes
    def redis(self, n=1, *, replicas=0, sentinels=0, cluster=0, config: dict | None = None, down_after_ms=500):
        """One Redis; or a list to unpack: n alone; primary, *replicas; primary, *replicas, *sentinels; a Cluster.

        cluster -- how many members: 3 primaries, or an even number from 6 on: the primaries, then a replica of each.
        config -- settings as redis.conf names them, e.g. {"maxmemory": "4mb", "appendonly": "yes"}; not for Sentinels.
        down_after_ms -- how long a primary may be silent before a Sentinel holds it for down.
        """
        topology.check(n, replicas, sentinels, cluster, down_after_ms)
        config = config or {}
        if cluster:
            primaries = cluster if cluster == 3 else cluster // 2
            roles = ["primary"] * primaries + ["replica"] * (cluster - primaries)
            return self._new_nodes("cluster", roles, config=config)
        if not replicas:
            made = self._new_nodes("redis", ["single"] * n, config=config)
            return made[0] if n == 1 else made
        made = self._new_nodes("redis", ["primary"] + ["replica"] * replicas, config=config)
        if not sentinels:
            return made
        watched = [(node.name, node.host, node.port) for node in made]  # the primary comes first
        roles = ["sentinel"] * sentinels
        return made + self._new_nodes("sentinel", roles, watched=watched, down_after_ms=down_after_ms)

    def postgres(self, *, config: dict | None = None) -> Node:
        """One PostgreSQL with an empty database. config -- settings as postgresql.conf names them."""
        return self._new_nodes("postgres", ["single"], config=config or {})[0]

    def etcd(self, n: int = 1, *, peer_links: bool = False, config: dict | None = None):
        """One etcd, or a cluster of n to unpack: a list of its members.

        peer_links -- their ways to each other lead over links, so that `cut_peers` can cut them; it costs throughput.
        config -- flags of etcd by name, e.g. {"heartbeat-interval": 20}.
        """
        return self._new_members("etcd", n, peer_links, config)

    def zookeeper(self, n: int = 1, *, peer_links: bool = False, config: dict | None = None):
        """One ZooKeeper, or an ensemble of n to unpack.

        peer_links -- as for etcd. config -- settings as zoo.cfg names them, e.g. {"tickTime": 100}.
        """
        return self._new_members("zookeeper", n, peer_links, config)

    def nginx(self, config: str = "", *, http: str = "", files: dict[str, str] | None = None) -> Node:
        """One nginx that serves files.

        config -- what its server block holds besides: "location / { limit_req zone=z burst=5; }"; http -- what comes
        before that block: "limit_req_zone $binary_remote_addr zone=z:1m rate=2r/s;"; files -- {path: text}.
        """
        files = {"index.html": "hello\n"} if files is None else files
        return self._new_nodes("nginx", ["single"], config=config, http=http, files=files)[0]

    def rabbitmq(self, *, config: dict | None = None) -> Node:
        """One RabbitMQ. It takes some seconds to start. config -- settings as rabbitmq.conf names them."""
        return self._new_nodes("rabbitmq", ["single"], config=config or {})[0]

    def kafka(self, n: int = 1, *, config: dict | None = None):
        """One Kafka broker, or n brokers to unpack, the first of which controls them. It takes `make setup-kafka`.

        config -- settings as server.properties names them.
        """
        return self._new_members("kafka", n, False, config)

    def _new_members(self, kind: str, n: int, peer_links: bool, config: dict | None):
        if n < 1:
            raise LabError(
                f"There is no {kind} of {n} members.",
                "A cluster has one member at least; three are the fewest that can do without one.",
                f"Write lab.{kind}() or lab.{kind}(3).",
            )
        made = self._new_nodes(kind, ["member"] * n, peer_links=peer_links and n > 1, config=config or {})
        return made[0] if n == 1 else made

    def _new_nodes(self, kind: str, roles: list[str], **options) -> list[Node]:
        """Start nodes that belong together, one a role, and wait until all of them serve."""
        self._check_open()
        first = 1 + sum(node.kind == kind for node in self.nodes)
        made = [Node(self, f"{kind}-{first + i}", kind, role, dict(options)) for i, role in enumerate(roles)]
        self._driver.start(made)
        self.nodes += made
        return made

    # -- runs, workers, watchers
    def run(self, title: str) -> Run:
        """A new experiment; use it as `with lab.run("title") as e:`."""
        self._check_open()
        return Run(self, title)

    def worker(self, name: str, function, *args, **kwargs) -> Worker:
        """A worker that will run `function(w, *args, **kwargs)` in its own process, once it is started."""
        self._check_open()
        run = self._current_run()
        if not name or name[0] == OBSERVER or "/" in name or name in [LAB, *run.workers, *(n.name for n in self.nodes)]:
            raise LabError(
                f"A worker cannot be named {name!r}.",
                "The name is empty, has a slash in it, or belongs to another worker of this run or to a node.",
                'Choose another, for example lab.worker("C", ...).',
            )
        worker = Worker(self, name, function, args, kwargs)
        run.workers[name] = worker
        self._recorder.add(LAB, "note", name, what="worker", pid=worker.pid)
        return worker

    def watch(self, node: Node, key: str) -> None:
        """Let an observer record what the server says about a key, as a lane of its own, until the run ends."""
        self._check_open()
        self._must_run(node)
        run = self._current_run()
        self._observers += 1
        observer = Worker(self, f"{OBSERVER}{self._observers}", servers.of(node.kind).observe, (node, key), {})
        run.workers[observer.name] = observer
        observer.run_to(WATCHING).start()

    def _current_run(self) -> Run:
        if self.run_now is None:
            raise LabError(
                "There is no run going on.",
                "Workers and watchers belong to one experiment, so that they end with it.",
                'Put it inside: with lab.run("what happens") as e:',
            )
        return self.run_now

    def _begin_run(self, run: Run) -> None:
        self._check_open()
        if self.run_now is not None:
            print(f"(the run {self.run_now.title!r} was still going on and was ended)")
            self._end_run(self.run_now)
        run._start, run._stop, run._frozen, run.workers = self._recorder.size(), None, None, {}
        self.run_now = run
        self._recorder.add(LAB, "note", "run", title=run.title)
        for (lane, fault), entry in self._faults.items():  # nodes that are dead since an earlier run
            entry[0] = self._recorder.add(lane, "begin", fault, fault=True)

    def _end_run(self, run: Run) -> None:
        if self.run_now is not run:
            return
        if not self._session.closed:
            with contextlib.suppress(LabError):
                self._end_workers(run)
            for (lane, fault), (_, heal) in list(self._faults.items())[::-1]:
                if heal:
                    try:
                        heal()
                    except Exception as error:  # must not replace the cell's own error
                        print(f"({fault} of {lane} could not be healed: {error})")
        for worker in run.workers.values():
            worker._close()
        run._stop = self._recorder.size()
        self.run_now = None  # last, so that an end that was interrupted is made good by the next run

    def _end_workers(self, run: Run) -> None:
        observers = [w for w in run.workers.values() if w.name[0] == OBSERVER and not w._over]
        for worker in run.workers.values():
            if worker not in observers:
                worker._kill()
                self._faults.pop((worker.name, "frozen"), None)
        for observer in observers:  # they close their spans themselves
            with contextlib.suppress(LabError):
                observer._send("stop")
                observer._await("end", 2)
            observer._kill()
            if observer.state == "raised":
                print(f"(a watch ended early: {observer._result})")

    # -- waiting
    def until(self, what: str, condition, timeout_s: float = 10) -> None:
        """Wait until `condition()` is true. `what` says it in words, for the record and for the error."""
        deadline, last = time.monotonic() + timeout_s, ""
        while True:
            self._check_open()
            try:
                if condition():
                    break
            except _MISTAKES:
                raise
            except Exception as error:  # a server in the middle of a fault answers with errors: not yet
                last = f" The last look raised {type(error).__name__}: {error}."
            if time.monotonic() > deadline:
                raise WaitError(
                    f"Not so within {timeout_s:g} s: {what}.",
                    "What should bring it about may be frozen, dead or cut off." + last,
                    "Look at lab.nodes and at the picture of the run.",
                )
            time.sleep(0.002)
        self._recorder.add(LAB, "note", what)

    def wait_gone(self, node: Node, key: str) -> None:
        """Wait until the value that `key` has now is gone: expired, deleted, replaced. Bound: its TTL and 2 s more."""
        self._check_open()
        self._must_run(node)
        client, server = node.client(), servers.of(node.kind)
        value, left_s = server.lease(client, key)
        if value is None or left_s is None:
            raise LabError(
                f"There is no {key!r} on {node.name} to wait for."
                if value is None
                else f"{key!r} on {node.name} has no TTL.",
                "It is gone already, or its name is another." if value is None else "It will never go by itself.",
                f'See what is there: {node.name.replace("-", "_")}.client().get("{key}")',
            )
        self.until(f"{key} is gone", lambda: server.lease(client, key)[0] != value, left_s + 2)

    def let_pass(self, seconds: float) -> None:
        """Let time pass, on purpose: where an experiment is about time, not to wait for an event."""
        self._check_open()
        self._recorder.add(LAB, "note", f"{seconds:g} s pass")
        time.sleep(seconds)

    # -- powers
    def can(self, power: str) -> bool:
        """Has this driver, on this machine, the power ("pause", "cut", "clock", …)? Ask before using a rare one."""
        return self._driver.can(power)

    # -- the record
    @property
    def timeline(self) -> Timeline:
        """Everything this lab recorded, all runs together."""
        return Timeline.load(self.record, title=self.name)

    # -- the end
    def _check_open(self) -> None:
        if self._session.closed:
            raise LabError(
                f"The lab {self.name!r} is closed.",
                "A cell closed it, or a later Lab(...) of the same name took its place.",
                f'Run the cell again that says: lab = Lab("{self.name}", ...)',
            )
        if os.getpid() != self._pid:
            raise LabError(
                f"The lab {self.name!r} belongs to another process.",
                "This one was forked from it (multiprocessing does so), and two cannot give orders to one laboratory.",
                "Use lab.worker(...) for a client in a process of its own.",
            )

    @property
    def closed(self) -> bool:
        return self._session.closed

    def close(self) -> None:
        """End all servers and workers of this lab. The record stays."""
        if self._session.closed or os.getpid() != self._pid:
            return
        if self.run_now:
            self._end_run(self.run_now)
        self._session.close()
        self._driver.close()
        for node in self.nodes:
            node.state = "closed"
        if _open.get(self.name) is self:
            del _open[self.name]
        atexit.unregister(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __reduce__(self):
        raise pickle.PicklingError("the lab lives in the notebook only")

    def __repr__(self) -> str:
        n = len(self.nodes)
        closed = ", closed" if self._session.closed else ""
        return f"Lab({self.name}, {self._driver.name}, {n} node{'s' * (n != 1)}{closed})"
