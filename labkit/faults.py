"""The faults: verbs of the Lab. Each is real, each is recorded on the lane of whom it strikes, each can be healed."""

import signal

from . import links, servers
from .errors import LabError, Unsupported
from .node import Node
from .worker import Worker


class Faults:
    """The part of Lab that breaks things; it uses the Lab's record, driver and session."""

    # -- faults: freeze, wake, kill
    def pause(self, who: Worker | Node, at: str | None = None) -> None:
        """Freeze a worker or a node with SIGSTOP: every thread of it stands still, sockets stay open.

        at -- for a worker: let it run to this mark first, and freeze it exactly there. When it wakes, it goes on.
        """
        self._check_open()
        self._must_be_awake(who)
        if at is not None:
            who.run_to(at)
        with self._verbs:
            self._must_be_awake(who)
            if isinstance(who, Node):
                self._must_run(who)
                self._driver.pause(who)
                who.state = "frozen"
            elif who._over or not who._signal(signal.SIGSTOP):
                raise self._is_over(who)
            else:
                who.frozen = True
            self._fault(who.name, "frozen", lambda: self.resume(who))

    def resume(self, who: Worker | Node) -> None:
        """Wake what `pause` froze (SIGCONT). A worker that was held at a mark goes on."""
        self._check_open()
        with self._verbs:
            if (who.name, "frozen") not in self._faults:
                raise LabError(
                    f"{who.name} is not frozen.",
                    f"It is {getattr(who, '_status', who.state)}; nothing paused it, or it was woken already.",
                    f"Freeze it first: lab.pause({who.name})",
                )
            self._healed(who.name, "frozen")  # first, so that nothing it does awake looks frozen
            if isinstance(who, Node):
                self._driver.resume(who)
                who.state = "running"
            else:
                who._signal(signal.SIGCONT)
                who.frozen = False
                if who.state != "new":
                    who.start()

    def kill(self, who: Worker | Node) -> None:
        """End a worker or a node with SIGKILL, which leaves it no time. A killed node never restarts by itself."""
        self._check_open()
        with self._verbs:
            if isinstance(who, Node):
                if who.state == "dead":
                    raise LabError(
                        f"{who.name} is dead already.",
                        "It was killed before.",
                        f"Start it again: lab.restart({who.name}, …)",
                    )
                self._driver.kill(who)
                self._healed(who.name, "frozen")
                who.state = "dead"
                self._fault(who.name, "dead", None)
            elif not who._kill():
                raise self._is_over(who)
            else:
                self._healed(who.name, "frozen")
                self._recorder.add(who.name, "mark", "killed", fault=True)

    def restart(self, node: Node, *, data: str) -> None:
        """Start a node again after a kill (or kill and start it). data: "kept" or "lost", what it finds on its disk."""
        self._check_open()
        if data not in ("kept", "lost"):
            raise LabError(
                f"A node cannot be restarted with data {data!r}.",
                "Whether it finds its data again decides the experiment, so it must be said.",
                f'Write lab.restart({node.name}, data="kept") or data="lost".',
            )
        with self._verbs:
            if node.state != "dead":
                self.kill(node)
            if data == "lost":
                self._driver.forget_data(node)
            self._driver.start([node])
            self._healed(node.name, "dead")

    def _must_be_awake(self, who: Worker | Node) -> None:
        if (who.name, "frozen") in self._faults:
            raise LabError(
                f"{who.name} is frozen already.",
                "A cell or the panel froze it before.",
                f"Wake it: lab.resume({who.name})",
            )

    def _must_run(self, node: Node) -> None:
        if node.state != "running":
            raise LabError(
                f"{node.name} is {node.state}.",
                "A cell or the panel did that before.",
                f'Start it again: lab.restart({node.name}, data="kept")'
                if node.state == "dead"
                else f"Wake it: lab.resume({node.name})",
            )

    def _is_over(self, worker: Worker) -> LabError:
        worker._settle()
        return LabError(
            f"{worker.name} has come to its end already ({worker.state}).",
            "Its function returned, raised, or it was killed; no process is left to touch.",
            "Make a new worker in a new run.",
        )

    # -- faults: links
    def cut(self, worker: Worker | str, *nodes: Node, how: str = "black hole") -> None:
        """Cut a worker's way to these nodes (all nodes, if none is named).

        how -- "black hole": bytes vanish both ways, sockets stay open, the server sees nothing; "reset": connections
        are closed; "replies": requests arrive, answers vanish.
        """
        self._check_open()
        if how not in links.CUTS:
            raise LabError(
                f"A link cannot be cut like {how!r}.",
                "It is cut in one of three ways.",
                f"Choose from: {', '.join(links.CUTS)}",
            )
        name = getattr(worker, "name", worker)
        for node in nodes or [node for node in self.nodes if servers.of(node.kind).linked]:
            with self._verbs:
                servers.of(node.kind).must_be_linked()
                links.cut_link(self._links, name, node.name, how)
                for fault in self._link_faults(name, node):
                    if fault.startswith("cut"):
                        self._healed(name, fault)
                fault = f"cut from {node.name}" + ("" if how == "black hole" else f" ({how})")
                self._fault(name, fault, lambda node=node: self.heal(name, node))

    def heal(self, worker: Worker | str, *nodes: Node) -> None:
        """Mend a worker's way to these nodes (all nodes, if none is named), cuts and delays."""
        self._check_open()
        name = getattr(worker, "name", worker)
        for node in nodes or self.nodes:
            with self._verbs:
                links.cut_link(self._links, name, node.name, None)
                links.delay_link(self._links, name, node.name, 0.0, 0.0)
                for fault in self._link_faults(name, node):
                    self._healed(name, fault)

    def delay(self, worker: Worker | str, node: Node, ms: float, *, only: str | None = None) -> None:
        """Every byte between worker and node arrives `ms` later, each way; only="requests" or "replies": one way."""
        self._check_open()
        name = getattr(worker, "name", worker)
        servers.of(node.kind).must_be_linked()
        with self._verbs:
            requests, replies = (0.0 if only == "replies" else ms / 1e3), (0.0 if only == "requests" else ms / 1e3)
            links.delay_link(self._links, name, node.name, requests, replies)
            for fault in self._link_faults(name, node):
                if not fault.startswith("cut"):
                    self._healed(name, fault)
            self._fault(name, f"{ms:g} ms late to {node.name}", lambda: self.heal(name, node))

    @property
    def _links(self) -> str:
        return f"{self._session.folder}/links.sock"

    def _link_faults(self, worker_name: str, node: Node) -> list[str]:
        """What is broken on the way between them: "cut from redis-1 (reset)", "5 ms late to redis-1"."""
        return [f for lane, f in self._faults if lane == worker_name and f.split(" (")[0].endswith(f" {node.name}")]

    # -- faults: the wall clock
    def set_clock(self, node: Node, *, jump_s: float = 0.0, rate: float | None = None) -> None:
        """Put a Redis node's wall clock forwards (or back: a negative number); or let it run at `rate` x the true pace.

        Jumps add up; a new rate takes the place of the old one. Its monotonic clock, and everybody else's, stays true.
        Raises Unsupported where it cannot be moved: ask lab.can("clock").
        """
        self._check_open()
        with self._verbs:
            if not isinstance(node, Node) or (node.state == "running" and not self._driver.moves_clock(node)):
                raise Unsupported(
                    f"The clock of {node.name} cannot be moved.",
                    "It is no Redis node, or there was no C compiler here when it was started.",
                    "Type: make setup, and start the lab again; or look at the chapter's recorded run.",
                )
            self._must_run(node)
            if (not jump_s and rate is None) or not (abs(jump_s) <= 1e8 and 0 <= (rate or 0) <= 1000):
                raise LabError(
                    f"A clock cannot be set like that: jump_s={jump_s}, rate={rate}.",
                    "A jump is in seconds, three years at most; a rate is between 0 (it stands) and 1000.",
                    f"For example lab.set_clock({node.name}, jump_s=60) or lab.set_clock({node.name}, rate=2)",
                )
            clock = self._driver.clock(node)
            before = repr(clock)
            clock.jump(jump_s)
            if rate is not None:
                clock.run_at(rate)
            self._healed(node.name, before)
            if not clock.right:
                self._fault(node.name, repr(clock), lambda: self.reset_clock(node))

    def reset_clock(self, node: Node) -> None:
        """Put a node's wall clock right: the true time at the true pace."""
        self._check_open()
        with self._verbs:
            clock = self._driver.clock(node)
            if clock.right:
                raise LabError(
                    f"The clock of {node.name} is right.",
                    "Nothing moved it, or it was put right already.",
                    f"Move it first: lab.set_clock({node.name}, jump_s=60)",
                )
            was = repr(clock)
            clock.reset()
            self._healed(node.name, was)

    # -- what is broken now
    def _fault(self, lane: str, fault: str, heal) -> None:
        self._faults[lane, fault] = [self._recorder.add(lane, "begin", fault, fault=True), heal]

    def _healed(self, lane: str, fault: str) -> None:
        if entry := self._faults.pop((lane, fault), None):
            self._recorder.add(lane, "end", fault, span=entry[0])
