import contextlib
import fcntl
import os
import pickle
import resource
import signal
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.wire import Wire, unix_address


@pytest.fixture
def ends():
    with contextlib.ExitStack() as stack:
        wires = [Wire(sock) for sock in socket.socketpair()]
        for wire in wires:
            stack.callback(wire.close)
        yield wires


def frame(*message) -> bytes:
    blob = pickle.dumps(message)
    return struct.pack("!I", len(blob)) + blob


def test_messages_go_both_ways_in_order(ends):
    ours, theirs = ends
    for number in range(100):
        ours.send("number", number)
        theirs.send("back", number)
    assert [theirs.recv(1) for _ in range(100)] == [("number", n) for n in range(100)]
    assert [ours.recv(1) for _ in range(100)] == [("back", n) for n in range(100)]


@given(st.lists(st.tuples(st.text(), st.integers(), st.binary(max_size=300)), max_size=20), st.data())
def test_a_message_is_whole_however_its_bytes_are_cut(messages, data):
    sock, theirs = socket.socketpair()
    with sock, theirs:
        wire, got = Wire(theirs), []
        stream = b"".join(frame(*message) for message in messages)
        while stream:
            piece, stream = stream[: (n := data.draw(st.integers(1, 400)))], stream[n:]
            sock.sendall(piece)
            with contextlib.suppress(TimeoutError):
                while True:
                    got.append(wire.recv(0))
        assert got == messages


def test_twenty_megabytes_in_one_message(ends):
    ours, theirs = ends
    blob = os.urandom(20_000_000)
    sender = threading.Thread(target=ours.send, args=("blob", blob))
    sender.start()
    assert theirs.recv(30) == ("blob", blob)
    sender.join(10)
    assert not sender.is_alive()


def test_nothing_comes_in_time(ends):
    ours, theirs = ends
    assert not ours.waiting()
    with pytest.raises(TimeoutError):
        ours.recv(0.01)
    theirs.send("late")
    assert ours.waiting() and ours.recv(1) == ("late",)


def test_half_a_message_is_kept_until_the_rest_comes(ends):
    ours, theirs = ends
    whole = frame("first", "x" * 1000) + frame("second")
    theirs.sock.sendall(whole[:500])
    with pytest.raises(TimeoutError):
        ours.recv(0.01)
    assert ours.waiting()
    theirs.sock.sendall(whole[500:])
    assert ours.recv(1) == ("first", "x" * 1000) and ours.recv(1) == ("second",)


def test_an_interrupt_in_the_middle_of_a_message_loses_nothing(ends):
    ours, theirs = ends
    whole = frame("whole", list(range(1000)))

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        theirs.sock.sendall(whole[:700])
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            ours.recv(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    theirs.sock.sendall(whole[700:])
    assert ours.recv(1) == ("whole", list(range(1000)))


def test_what_was_said_before_the_end_is_heard_then_the_end(ends):
    ours, theirs = ends
    theirs.send("last words")
    theirs.close()
    assert ours.recv(1) == ("last words",)
    with pytest.raises(EOFError):
        ours.recv(1)
    with pytest.raises(ConnectionError):
        ours.send("anybody there?")


def test_an_end_in_the_middle_of_a_message_is_an_end(ends):
    ours, theirs = ends
    theirs.sock.sendall(frame("never whole")[:9])
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv(1)


def test_sending_to_one_who_takes_nothing_has_a_bound_and_the_order_stays(ends):
    ours, theirs = ends
    blob = os.urandom(5_000_000)
    with pytest.raises(TimeoutError):
        ours.send("big", blob, timeout_s=0.05)
    got = []
    reader = threading.Thread(target=lambda: got.extend(theirs.recv(10) for _ in range(2)))
    reader.start()
    ours.send("small", timeout_s=10)
    reader.join(10)
    assert got == [("big", blob), ("small",)]


def test_waiting_for_an_answer_sends_what_was_left_unsent(ends):
    ours, theirs = ends
    with pytest.raises(TimeoutError):
        ours.send("question", b"?" * 5_000_000, timeout_s=0.05)

    def answer():
        word, _ = theirs.recv(10)
        theirs.send(f"answer to {word}")

    other = threading.Thread(target=answer)
    other.start()
    assert ours.recv(10) == ("answer to question",)
    other.join(10)


def test_the_last_words_of_one_who_took_nothing_are_heard(ends):
    ours, theirs = ends
    with pytest.raises(TimeoutError):
        ours.send("big", b"?" * 5_000_000, timeout_s=0.05)
    theirs.send("not interested")
    theirs.close()
    assert ours.recv(1) == ("not interested",)
    with pytest.raises(EOFError):
        ours.recv(1)


def test_descriptors_above_1023():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        a, b = socket.socketpair()
        with a, b, socket.socket(fileno=fcntl.fcntl(a.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)) as high:
            assert high.fileno() >= 1500
            Wire(b).send("hello")
            assert Wire(high).waiting() and Wire(high).recv(1) == ("hello",)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_unix_socket_below_a_folder_of_any_length(tmp_path):
    folder = tmp_path / ("long" * 40) / ("er " * 40) / "über"
    folder.mkdir(parents=True)
    address, holder = unix_address(str(folder / "s.sock"))
    try:
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
            listener.bind(address)
            listener.listen()
            caller.connect(address)
    finally:
        os.close(holder)
    assert (folder / "s.sock").is_socket()
