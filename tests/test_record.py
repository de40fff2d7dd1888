"""The record: real processes write it at once, are killed and run out of room; what is read back must be true."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.record import LAB, Event, Recorder, Span, Timeline

fork = multiprocessing.get_context("fork")
BOUND_S = 60


def rows(path):
    """Every line of a record, parsed; fails on a line that is not whole."""
    return [json.loads(line) for line in Path(path).read_bytes().splitlines() if line]


def write_lines(path, *lines):
    Path(path).write_bytes(
        b"".join(line if isinstance(line, bytes) else f"{json.dumps(line)}\n".encode() for line in lines)
    )
    return path


def row(t_ns, pid, number, lane, kind, name, **data):
    return [t_ns, pid, number, lane, kind, name, data]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a record with spaces, é.jsonl"


# -- writing
def test_many_processes_write_at_once_and_every_line_is_whole(path):
    writers, rounds, lines = 4, 10, 1000
    together = fork.Barrier(writers)
    shared = Recorder(path)

    def write(name):
        recorder = shared if name in ("W0", "W1") else Recorder(path)  # inherited by a fork, or opened by oneself
        for turn in range(rounds):
            together.wait(BOUND_S)  # nobody is done before everybody has begun
            for i in range(lines):
                recorder.add(name, "mark", "tick", n=turn * lines + i, padding="é" * (i % 50))

    processes = [fork.Process(target=write, args=(f"W{i}",)) for i in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(BOUND_S)
    assert [process.exitcode for process in processes] == [0] * writers

    found = rows(path)
    assert len(found) == writers * rounds * lines
    pids = [pid for _, pid, *_ in found]
    assert set(pids) == {process.pid for process in processes}
    assert sum(a != b for a, b in zip(pids, pids[1:], strict=False)) >= rounds
    for process in processes:
        mine = [r for r in found if r[1] == process.pid]
        assert [r[6]["n"] for r in mine] == list(range(rounds * lines))
        assert [r[2] for r in mine] == list(range(mine[0][2], mine[0][2] + len(mine)))
    assert len(Timeline.load(path).marks("tick")) == len(found)


@contextlib.contextmanager
def endless_writer(recorder):
    """A process that writes as lane A; yields it, and a file from which to read the numbers of lines it has written."""
    reader, writer = os.pipe()

    def write():
        for i in range(10_000_000):
            number = recorder.add("A", "mark", "tick", n=i)
            if i % 500 == 0:
                os.write(writer, f"{number}\n".encode())

    process = fork.Process(target=write)
    process.start()
    os.close(writer)
    try:
        with open(reader, "rb") as told:
            yield process, told
    finally:
        process.kill()
        process.join(BOUND_S)


def test_what_a_killed_writer_said_is_there_and_the_others_go_on(path):
    recorder = Recorder(path)
    with endless_writer(recorder) as (process, told):
        numbers = [int(told.readline()) for _ in range(5)]
        process.kill()
        numbers += map(int, told)
    assert process.exitcode == -signal.SIGKILL

    recorder.add("B", "mark", "tick")
    *of_a, of_b = rows(path)
    assert of_b[1] == os.getpid() and of_b[3] == "B"
    assert [r[6]["n"] for r in of_a] == list(range(len(of_a)))
    assert of_a[-1][2] >= max(numbers)


def test_a_frozen_writer_holds_nobody_up(path):
    recorder = Recorder(path)
    with endless_writer(recorder) as (process, told):
        told.readline()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(1000):
            recorder.add("B", "mark", "tick")
        lanes = [r[3] for r in rows(path)]
        assert lanes == ["A"] * (len(lanes) - 1000) + ["B"] * 1000 and lanes[0] == "A"


def test_a_number_is_told_back_and_is_the_id_of_a_span(path):
    recorder = Recorder(path)
    numbers = [recorder.add("A", kind, "x") for kind in ("mark", "begin", "begin")]
    assert numbers == [0, 1, 2]
    assert [r[6].get("span") for r in rows(path)] == [None, 1, 2]


def test_data_that_json_does_not_know_is_told_as_text(path):
    Recorder(path).add("A", "mark", "x", data={1}, text="a\nb\r\u2028c", name="its own")
    (event,) = Timeline.load(path).events
    assert event.data == {"data": "{1}", "text": "a\nb\r\u2028c", "name": "its own"}


OUT_OF_ROOM = """
import resource, sys
from labkit.errors import LabError
from labkit.record import Recorder
recorder = Recorder(sys.argv[1])
recorder.add("A", "mark", "x")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
told = []
for i in range(100):
    try:
        recorder.add("A", "mark", "x", n=i)
    except LabError as error:
        told.append(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
recorder.add("A", "mark", "there is room again")
print(told[0])
print(told[-1])
print(len(told))
"""


@pytest.mark.parametrize("limit", [1000, 1001, 1037])
def test_a_full_disk_is_told_in_three_lines_and_spoils_no_other_line(path, limit):
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_ROOM, path, str(limit)], capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    *lines, refused = done.stdout.splitlines()
    assert len(lines) == 6
    for what, why, todo in (lines[:3], lines[3:]):
        assert what.startswith("The record could not be written: ")
        assert str(path) in why and "ulimit -f" in why
        assert "LABKIT_HOME" in todo
    assert "File too large" in lines[3]

    names = [(e.name, e.data.get("n")) for e in Timeline.load(path).events]
    assert names[0] == ("x", None) and names[-1] == ("there is room again", None)
    assert names[1:-1] == [("x", i) for i in range(100 - int(refused))] and 5 < len(names) < 50


# -- reading
def test_lines_that_are_not_whole_are_left_out(path):
    good = [row(i, 1, i, "A", "mark", f"m{i}") for i in range(3)]
    cut_short, garbage = (
        b'[1, 1, 1, "A", "ma\n',
        [b"\n", b"\x00\xff\n", b"17\n", b"null\n", b'"text"\n', b"[1, 2]\n", b"{}\n"],
    )
    write_lines(path, good[0], cut_short, *garbage, good[1], good[2], b'[4, 1, 4, "A", "mark", "m4"')
    timeline = Timeline.load(path)
    assert [e.name for e in timeline.events] == ["m0", "m1", "m2"]
    assert timeline.lanes == ("A",) and timeline.spans() == []


def test_events_are_ordered_by_time_then_pid_then_number(path):
    write_lines(
        path, row(1000, 2, 1, "B", "mark", "e"), row(3000, 1, 9, "A", "mark", "f"), row(1000, 2, 0, "B", "mark", "d"),
        row(500, 9, 0, "C", "mark", "a"), row(1000, 1, 11, "A", "mark", "c"), row(1000, 1, 2, "A", "mark", "b"),
    )  # fmt: skip
    timeline = Timeline.load(path)
    assert "".join(e.name for e in timeline.events) == "abcdef"
    assert [e.t for e in timeline.events] == [0.0, 5e-07, 5e-07, 5e-07, 5e-07, 2.5e-06]
    assert timeline.seconds == 2.5e-06


def test_a_part_of_the_record_is_a_run_of_its_own(path):
    recorder = Recorder(path)
    recorder.add("A", "mark", "before")
    start = recorder.size()
    recorder.add(LAB, "note", "run", title="the one")
    recorder.add("A", "mark", "inside")
    stop = recorder.size()
    recorder.add("A", "mark", "after")
    assert [e.name for e in Timeline.load(path, start, stop).marks()] == ["inside"]
    assert [e.name for e in Timeline.load(path, start).marks()] == ["inside", "after"]
    assert Timeline.load(path, start, stop).title == "the one"
    assert Timeline.load(path, start, stop, "told").title == "told"
    assert Timeline.load(path, start, start) == Timeline()


def test_a_record_that_is_not_there_is_told_in_three_lines(path):
    with pytest.raises(LabError) as told:
        Timeline.load(path)
    assert len(str(told.value).splitlines()) == 3 and str(path) in str(told.value)


# -- a timeline by hand
def begin(t, span, name="s", pid=1, lane="A", **data):
    return Event(t, lane, "begin", name, {**data, "span": span}, pid)


def end(t, span, pid=1, lane="A", **data):
    return Event(t, lane, "end", "", {**data, "span": span}, pid)


def told(spans):
    return [(s.name, s.start, s.end, s.how) for s in spans]


def test_spans_nest_and_overlap_and_are_paired_by_their_ids():
    timeline = Timeline(
        (begin(0, 1, "outer"), begin(1, 2, "same"), begin(2, 3, "same"), end(3, 2, error="E"), end(4, 1), end(5, 3))
    )
    assert told(timeline.spans()) == [("outer", 0, 4, "ended"), ("same", 1, 3, "ended"), ("same", 2, 5, "ended")]
    assert [s.data.get("error") for s in timeline.spans("same")] == ["E", None]
    assert timeline.spans("same")[0].seconds == 2


def test_two_processes_may_use_one_id():
    timeline = Timeline(
        (begin(0, 7, pid=1), begin(1, 7, pid=2, lane="B"), end(2, 7, pid=1), end(3, 7, pid=2, lane="B"))
    )
    assert [(s.lane, s.start, s.end) for s in timeline.spans()] == [("A", 0, 2), ("B", 1, 3)]
    assert [s.lane for s in timeline.spans(lane="B")] == ["B"]


def test_a_death_closes_the_spans_of_that_process_only():
    exit_of_1 = Event(3, LAB, "note", "exit", {"pid": 1}, 99)
    timeline = Timeline(
        (begin(0, 1), begin(1, 1, pid=2, lane="B"), begin(2, 2), exit_of_1, end(4, 1, pid=2, lane="B"), end(5, 1))
    )
    assert told(timeline.spans()) == [("s", 0, 3, "died"), ("s", 1, 4, "ended"), ("s", 2, 3, "died")]


def test_a_pid_may_be_used_again_after_a_death():
    exit_of_1 = Event(1, LAB, "note", "exit", {"pid": 1}, 99)
    timeline = Timeline((begin(0, 5), exit_of_1, begin(2, 5), end(3, 5)))
    assert told(timeline.spans()) == [("s", 0, 1, "died"), ("s", 2, 3, "ended")]


def test_a_span_that_nobody_closed_is_open_until_the_end():
    timeline = Timeline((begin(0, 1), begin(1, 2), end(2, 2), Event(6, "B", "mark", "m")))
    assert told(timeline.spans()) == [("s", 0, 6, "open"), ("s", 1, 2, "ended")]


def test_an_end_without_a_begin_is_left_out():
    assert Timeline((end(1, 1), begin(2, 2), end(3, 2), end(4, 2))).spans() == [Span("A", "s", 2, 3, {"span": 2})]


@pytest.mark.parametrize(
    ("how", "data", "outcome"),
    [
        ("ended", {}, "ok"), ("died", {}, "unknown"), ("open", {}, "unknown"),
        ("ended", {"outcome": "fail"}, "fail"), ("ended", {"outcome": "unknown"}, "unknown"),
    ],
)  # fmt: skip
def test_an_operation_is_ok_failed_or_unknown(how, data, outcome):
    assert Span("A", "s", 0, 1, data, how).outcome == outcome


def worker(name, t=0.0, pid=1):
    return Event(t, LAB, "note", name, {"what": "worker", "pid": pid}, 99)


def test_workers_come_in_order_of_creation_and_before_the_other_lanes():
    marks = [Event(t, lane, "mark", "m") for t, lane in enumerate(["lock", "A", "B"])]
    unseen = Event(4, "C", "note", "n"), Event(5, LAB, "begin", "fault", {"span": 1})
    timeline = Timeline((worker("B"), worker("A"), worker("silent"), *marks, *unseen))
    assert timeline.workers == ("B", "A", "silent")
    assert timeline.lanes == ("B", "A", "lock")
    assert [e.t for e in timeline.marks("m", lane="B")] == [2] and len(timeline.marks("m")) == 3


@pytest.mark.parametrize("name", ["run", "exit"])
def test_a_worker_may_have_any_name(path, name):
    recorder = Recorder(path)
    recorder.add(LAB, "note", "run", title="the title")
    recorder.add(LAB, "note", name, what="worker", pid=os.getpid())
    span = recorder.add(name, "begin", "holds")
    recorder.add(LAB, "note", name)  # what `lab.until` waited for
    recorder.add(name, "end", "holds", span=span)
    timeline = Timeline.load(path)
    assert timeline.title == "the title" and timeline.workers == (name,)
    assert [s.how for s in timeline.spans()] == ["ended"]


def test_nothing_recorded_is_an_empty_timeline(path):
    path.touch()
    timeline = Timeline.load(path)
    assert timeline == Timeline() and timeline.seconds == 0 and timeline.lanes == () and timeline.spans() == []
    assert repr(timeline) == "Timeline(0 events, 0.0 s, lanes none)"


# -- kept as a file
def test_a_saved_run_is_read_back_as_it_was(path, tmp_path):
    recorder = Recorder(path)
    recorder.add(LAB, "note", "run", title="A sleeps · 眠る")
    recorder.add(LAB, "note", "A", what="worker", pid=os.getpid())
    span = recorder.add("A", "begin", "holds", lock="lock", token=3, nested={"a": [1, None, 2.5]})
    for i in range(2000):
        recorder.add("A", "mark", f"m{i}")
    recorder.add("A", "end", "holds", span=span, outcome="fail")
    recorder.add(LAB, "note", "exit", pid=os.getpid())
    timeline = Timeline.load(path)
    saved = timeline.save(tmp_path / "a new folder" / "run.jsonl")
    again = Timeline.load(saved)
    assert again == timeline and again.title == "A sleeps · 眠る"
    assert again.spans() == timeline.spans() and again.workers == ("A",)
    assert Timeline.load(again.save(tmp_path / "twice.jsonl")) == timeline


def test_a_timeline_made_by_hand_keeps_its_title_and_times(tmp_path):
    timeline = Timeline((begin(0.25, 1), Event(0.5, "A", "mark", "run"), end(3.000000001, 1)), "by hand")
    again = Timeline.load(timeline.save(tmp_path / "run.jsonl"))
    assert again.title == "by hand"
    assert again.events[-3:] == timeline.events
