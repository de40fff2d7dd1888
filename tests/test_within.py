import contextlib
import os
import pickle
import socket
import threading

import kazoo.exceptions
import pytest
import redis

from labkit.record import Recorder, Timeline
from labkit.wire import Wire
from labkit.within import Within, outcome_of


class Side:
    """The kernel's side of one worker, and the worker's own in this process."""

    def __init__(self, folder):
        ours, theirs = socket.socketpair()
        self.kernel, self.record = Wire(ours), folder / "record.jsonl"
        self.w = Within("A", Wire(theirs), Recorder(self.record), "")

    @property
    def timeline(self) -> Timeline:
        return Timeline.load(self.record)


@pytest.fixture
def side(tmp_path):
    side = Side(tmp_path)
    yield side
    side.kernel.close()
    side.w._wire.close()


@contextlib.contextmanager
def going(function, *args):
    """A thread that must have come to its end when the block is left."""
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    yield thread
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "error, outcome",
    [
        (TimeoutError(), "unknown"),
        (ConnectionResetError(), "unknown"),
        (BrokenPipeError(), "unknown"),
        (redis.exceptions.TimeoutError(), "unknown"),
        (redis.exceptions.ConnectionError(), "unknown"),
        (kazoo.exceptions.ConnectionLoss(), "unknown"),
        (redis.exceptions.ResponseError(), "fail"),
        (redis.exceptions.LockError(), "fail"),
        (ValueError(), "fail"),
        (AssertionError(), "fail"),
        (KeyboardInterrupt(), "fail"),
        (OSError(), "fail"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__module__}.{type(value).__name__}",
)
def test_an_operation_whose_answer_never_came_may_have_happened(error, outcome):
    assert outcome_of(error) == outcome


def test_marks_and_spans_are_recorded_under_its_name(side):
    side.w.mark("checked", token=7)
    with side.w.span("holds", lock="lock"):
        side.w.note("renewed")
    span = side.w.begin("waits")
    side.w.end(span, outcome="fail")
    t = side.timeline
    assert [(e.lane, e.kind, e.name, e.data.get("token")) for e in t.events[:1]] == [("A", "mark", "checked", 7)]
    assert [(s.name, s.outcome, s.how) for s in t.spans()] == [("holds", "ok", "ended"), ("waits", "fail", "ended")]
    assert t.marks("renewed")[0].lane == "A"
    assert {e.pid for e in t.events} == {os.getpid()}


@pytest.mark.parametrize(
    "error, outcome", [(redis.exceptions.TimeoutError("late"), "unknown"), (ValueError("no"), "fail")]
)
def test_a_span_ends_when_its_block_raises(side, error, outcome):
    with pytest.raises(type(error)), side.w.span("takes"):
        raise error
    [span] = side.timeline.spans("takes")
    assert (span.outcome, span.how, span.data["error"]) == (outcome, "ended", type(error).__name__)


def test_a_write_and_a_read_stand_on_the_resource_s_lane(side):
    side.w.wrote("ledger", "A", token=3)
    side.w.wrote("ledger", "A", ok=False, token=2, seq=9)
    side.w.has_read("ledger", 5)
    taken, refused, read = side.timeline.marks(lane="ledger")
    assert taken.data == {"by": "A", "op": "write", "value": "A", "ok": True, "token": 3}
    assert refused.data == {"by": "A", "op": "write", "value": "A", "ok": False, "token": 2, "seq": 9}
    assert read.data == {"by": "A", "op": "read", "value": 5, "ok": True}


@pytest.mark.parametrize(
    "where, pass_by",
    [
        ("checked", lambda w: w.mark("checked")),
        ("holds", lambda w: w.begin("holds")),
        ("wrote", lambda w: w.wrote("ledger", 1)),
        ("read", lambda w: w.has_read("ledger", 1)),
    ],
    ids=["mark", "span", "write", "read"],
)
def test_it_stands_where_it_was_told_to_once_and_only_there(side, where, pass_by):
    side.kernel.send("stop_at", where)

    def runs(w):
        w.mark("another")
        pass_by(w)
        pass_by(w)
        w.mark("end")

    with going(runs, side.w):
        assert side.kernel.recv(5) == ("at", where)
        assert not side.timeline.marks("end")
        side.kernel.send("go")
    assert side.timeline.marks("end")
    assert not side.kernel.waiting()


def test_what_it_stands_at_is_recorded_before_it_stands(side):
    side.kernel.send("stop_at", "checked")
    with going(side.w.mark, "checked"):
        side.kernel.recv(5)
        assert side.timeline.marks("checked")
        side.kernel.send("go")


def test_a_note_is_no_place_to_stand_at(side):
    side.kernel.send("stop_at", "renewed")
    side.w.note("renewed")
    assert not side.kernel.waiting()


def test_while_one_thread_stands_the_others_go_on(side):
    side.kernel.send("stop_at", "checked")
    others_done = threading.Event()

    def watchdog():
        for number in range(200):
            side.w.mark("renewed", number=number)
        others_done.set()

    with going(side.w.mark, "checked"):
        assert side.kernel.recv(5) == ("at", "checked")
        side.kernel.send("stop_at", "later")
        with going(watchdog):
            assert others_done.wait(10)
        side.kernel.send("go")
    assert len(side.timeline.marks("renewed")) == 200
    with going(side.w.mark, "later"):
        assert side.kernel.recv(5) == ("at", "later")
        side.kernel.send("go")


def test_threads_that_mark_at_once_never_take_each_other_s_orders(side):
    """Each order is for one mark of one thread; with several readers on one pipe some would wait for ever."""
    places = [f"place {n}" for n in range(200)]

    def marks(mine):
        for place in mine:
            side.w.mark(place)

    for place in places:
        side.kernel.send("stop_at", place)
    stood = []
    with contextlib.ExitStack() as stack:
        threads = [stack.enter_context(going(marks, places[n::4])) for n in range(4)]
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(TimeoutError):
                stood.append(side.kernel.recv(0.01)[1])
                side.kernel.send("go")
    assert len(stood) == len(set(stood)) and set(stood) <= set(places) and stood
    assert len(side.timeline.marks()) == 200


def test_it_is_told_to_stop(side):
    assert not side.w.stopping
    side.kernel.send("stop")
    assert side.w.stopping and side.w.stopping


def test_it_cannot_leave_its_process(side):
    with pytest.raises(TypeError, match="belongs to one worker's process"):
        pickle.dumps(side.w)
