"""The link process between a client and a server that this test holds in its hands, both plain sockets.

That something does *not* arrive is shown by another link, not by waiting: the link process is one loop, so what goes a
whole round through B's link afterwards has overtaken nothing that could still come through A's.
"""

import contextlib
import hashlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import cloudpickle
import pytest
from kernels import eventually

from labkit import Lab, LabError, links
from labkit.processes import descendants

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def lab():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # as on some machines; the link process raises its own
    with Lab("links") as lab:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield lab


class Way:
    """Worker `who`'s link to a server of this test."""

    def __init__(self, lab, stack, who, node):
        self.who, self.node, self.path, self._stack = who, node, lab._links, stack
        self.port = links.open_link(self.path, who, node)

    def dial(self) -> socket.socket:
        """A client's new connection; it stands as soon as the link process has it."""
        sock = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port), 10))
        sock.settimeout(10)
        return sock

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """(the client's end, the server's end)."""
        client = self.dial()
        return client, self.accept()

    def accept(self) -> socket.socket:
        self.node.listener.settimeout(10)
        server = self._stack.enter_context(self.node.listener.accept()[0])
        server.settimeout(10)
        return server

    def cut(self, how):
        links.cut_link(self.path, self.who, self.node.name, how)

    def heal(self):
        self.cut(None)

    def delay(self, requests_s, replies_s):
        links.delay_link(self.path, self.who, self.node.name, requests_s, replies_s)


@pytest.fixture
def ways(lab):
    """Makes the ways of as many workers as wanted to one server; heals them all in the end."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        host, port = listener.getsockname()
        node = SimpleNamespace(name=f"node-{port}", host=host, port=port, listener=listener)
        made = {}

        def way(who):
            made[who] = Way(lab, stack, who, node)
            return made[who]

        yield way
        for one in made.values():
            one.heal()
            one.delay(0, 0)


@pytest.fixture
def a(ways):
    return ways("A")


@pytest.fixture
def a_round_later(ways):
    """Waits until something has gone through the link process and back, twice, on another worker's way."""
    client, server = ways("witness").connect()

    def round_trip():
        for _ in range(2):
            client.sendall(b"?")
            assert server.recv(1) == b"?"
            server.sendall(b"!")
            assert client.recv(1) == b"!"

    round_trip()
    return round_trip


def receive(sock, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = sock.recv(size - len(got))
        assert piece, f"the end came after {len(got)} of {size} bytes"
        got += piece
    return got


def silent(sock) -> bool:
    """Nothing to read, not even the end."""
    return not select.select([sock], [], [], 0)[0]


def ended(sock) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


# -- nothing cut


def test_bytes_go_through_both_ways(a):
    client, server = a.connect()
    blob = bytes(range(256)) * 40
    client.sendall(blob)
    assert receive(server, len(blob)) == blob
    server.sendall(blob[::-1])
    assert receive(client, len(blob)) == blob[::-1]


def test_each_connection_is_its_own_and_the_port_stays(a, ways):
    first, first_server = a.connect()
    second, second_server = a.connect()
    second.sendall(b"2")
    first.sendall(b"1")
    assert (first_server.recv(1), second_server.recv(1)) == (b"1", b"2")
    assert links.open_link(a.path, a.who, a.node) == a.port != ways("B").port


def test_the_end_goes_through_after_the_last_bytes(a):
    client, server = a.connect()
    client.sendall(b"last words")
    client.close()
    assert receive(server, 10) == b"last words" and ended(server)
    client, server = a.connect()
    server.sendall(b"last words")
    server.close()
    assert receive(client, 10) == b"last words" and ended(client)


def test_a_server_that_is_not_there_refuses(a):
    a.node.listener.close()
    assert ended(a.dial())


def test_twenty_megabytes_both_ways_at_once(a):
    client, server = a.connect()
    up, down = os.urandom(20_000_000), os.urandom(20_000_000)
    got = {}

    def take(name, sock):
        got[name] = hashlib.sha256(receive(sock, 20_000_000)).digest()

    threads = [
        threading.Thread(target=client.sendall, args=(up,)),
        threading.Thread(target=server.sendall, args=(down,)),
        threading.Thread(target=take, args=("server", server)),
        threading.Thread(target=take, args=("client", client)),
    ]
    for sock in (client, server):
        sock.settimeout(60)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {"server": hashlib.sha256(up).digest(), "client": hashlib.sha256(down).digest()}


def test_a_server_that_does_not_read_holds_the_client_up(a, a_round_later):
    client, server = a.connect()
    client.setblocking(False)
    sent, blob, refused = 0, bytes(1 << 16), 0
    while refused < 5 and sent < 100 << 20:
        try:
            sent += client.send(blob)
            refused = 0
        except BlockingIOError:
            refused += 1
            a_round_later()
    assert sent < 50 << 20, "the link process takes all in, and its memory is the only bound"
    server.settimeout(30)
    assert len(receive(server, sent)) == sent


# -- black hole


def test_in_a_black_hole_bytes_vanish_and_sockets_stay_open(a, a_round_later):
    client, server = a.connect()
    a.cut("black hole")
    client.sendall(b"request")
    server.sendall(b"reply")
    a_round_later()
    assert silent(server) and silent(client)


def test_a_black_hole_swallows_new_connections_too(a, a_round_later):
    a.cut("black hole")
    client, quiet = a.dial(), a.dial()
    client.sendall(b"request")
    a_round_later()
    assert silent(a.node.listener) and silent(client) and silent(quiet)
    a.heal()
    assert ended(client) and ended(quiet), "the server never heard of them, so they cannot go on"
    client, server = a.connect()
    client.sendall(b"again")
    assert receive(server, 5) == b"again"


def test_a_black_hole_hides_that_the_other_side_went(a, a_round_later):
    client, server = a.connect()
    other, other_server = a.connect()
    a.cut("black hole")
    client.close()
    other_server.close()
    a_round_later()
    assert silent(server) and silent(other)
    a.heal()
    assert ended(server) and ended(other)


def test_healing_closes_what_lost_bytes_and_spares_what_lost_none(a, a_round_later):
    lost, lost_server = a.connect()
    idle, idle_server = a.connect()
    a.cut("black hole")
    lost.sendall(b"request")
    a_round_later()
    a.heal()
    assert ended(lost) and ended(lost_server)
    idle.sendall(b"still here")
    assert receive(idle_server, 10) == b"still here"


def test_only_one_worker_s_way_is_cut(a, ways):
    b = ways("B")
    a.cut("black hole")
    client, server = b.connect()
    client.sendall(b"through")
    assert receive(server, 7) == b"through"


def test_a_way_that_is_cut_before_it_is_first_used(a, ways, a_round_later):
    links.cut_link(a.path, "late", a.node.name, "black hole")
    late = ways("late")
    late.dial().sendall(b"request")
    a_round_later()
    assert silent(late.node.listener)


def test_a_client_may_try_again_a_thousand_times(a, a_round_later):
    a.cut("black hole")
    for _ in range(1000):
        socket.create_connection(("127.0.0.1", a.port), 10).close()
    a_round_later()
    a.heal()
    client, server = a.connect()
    client.sendall(b"x")
    assert receive(server, 1) == b"x"


# -- reset


def test_a_reset_closes_both_ends_and_every_new_connection(a, a_round_later):
    client, server = a.connect()
    a.cut("reset")
    assert ended(client) and ended(server)
    assert ended(a.dial())
    a_round_later()
    assert silent(a.node.listener)
    a.heal()
    client, server = a.connect()
    client.sendall(b"x")
    assert receive(server, 1) == b"x"


def test_a_reset_while_the_server_is_being_reached_leaves_no_connection_there(ways):
    """A server whose queue is full lets connections wait: the link process is still reaching it at the reset."""
    a, b = ways("A"), ways("B")
    a.node.listener.listen(0)
    with socket.create_connection((a.node.host, a.node.port), 10):  # fills the queue
        client = a.dial()
        b.heal()  # once this is answered, the link process is on its way to the server
        a.cut("reset")
        assert ended(client)
        a.accept()  # makes room, and the system knocks again within a second
        assert ended(a.accept())
        client, server = b.connect()
        client.sendall(b"x")
        assert receive(server, 1) == b"x"


# -- replies


def test_requests_arrive_and_replies_vanish(a, a_round_later):
    client, server = a.connect()
    a.cut("replies")
    client.sendall(b"request")
    assert receive(server, 7) == b"request"
    server.sendall(b"reply")
    a_round_later()
    assert silent(client)
    a.heal()
    assert ended(client) and ended(server)


def test_a_new_connection_sends_requests_and_hears_nothing(a, a_round_later):
    a.cut("replies")
    client, server = a.connect()
    client.sendall(b"request")
    assert receive(server, 7) == b"request"
    server.sendall(b"reply")
    server.close()
    a_round_later()
    assert silent(client)


# -- delay


def test_every_byte_comes_later_each_way_and_in_order(a):
    client, server = a.connect()
    a.delay(0.1, 0.1)
    start = time.monotonic()
    for number in range(50):
        client.sendall(b"%03d" % number)
        if number % 10 == 0:  # in several pieces
            time.sleep(0.001)
    assert receive(server, 150) == b"".join(b"%03d" % number for number in range(50))
    assert time.monotonic() - start >= 0.1
    start = time.monotonic()
    server.sendall(b"reply")
    assert receive(client, 5) == b"reply"
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("slow", ["requests", "replies"])
def test_one_way_only_is_late(a, slow):
    client, server = a.connect()
    a.delay(**{"requests_s": 30 if slow == "requests" else 0, "replies_s": 30 if slow == "replies" else 0})
    late, prompt = ((client, server), (server, client)) if slow == "requests" else ((server, client), (client, server))
    late[0].sendall(b"late")
    prompt[0].sendall(b"prompt")
    assert receive(prompt[1], 6) == b"prompt"
    assert silent(late[1])


def test_a_delay_that_ends_does_not_let_later_bytes_overtake(a):
    client, server = a.connect()
    a.delay(0.2, 0)
    client.sendall(b"first ")
    links.delay_link(a.path, a.who, "another node", 0, 0)
    a.delay(0, 0)
    client.sendall(b"second")
    assert receive(server, 12) == b"first second"


def test_the_end_is_late_too(a):
    client, server = a.connect()
    a.delay(0.1, 0)
    start = time.monotonic()
    client.close()
    assert ended(server) and time.monotonic() - start >= 0.1


def on_its_way(way, then, delay_s=0.2):
    """A connection with a piece on its way while `then` was done: the machine may be slow, so it is tried again."""
    way.delay(delay_s, 0)
    for _ in range(20):
        client, server = way.connect()
        start = time.monotonic()
        client.sendall(b"on its way")
        then()
        if time.monotonic() - start < delay_s:
            return client, server
        way.heal()
    pytest.fail("this machine is too slow")


def test_a_piece_on_its_way_is_lost_when_the_link_is_cut(a, ways):
    other, other_server = (b := ways("B")).connect()
    b.delay(0.2, 0)
    client, server = on_its_way(a, lambda: a.cut("black hole"))
    other.sendall(b"sent after it")
    assert receive(other_server, 13) == b"sent after it"
    assert silent(server)
    a.heal()
    assert ended(client) and ended(server), "it lost bytes, so it cannot go on"


def test_a_piece_on_its_way_comes_when_the_cut_was_healed_before_it_was_due(a):
    _, server = on_its_way(a, lambda: (a.cut("black hole"), a.heal()))
    assert receive(server, 10) == b"on its way"


def test_a_reset_takes_along_what_is_on_its_way(a):
    client, server = on_its_way(a, lambda: a.cut("reset"))
    assert ended(server) and ended(client)


# -- real servers, real workers


def test_a_killed_server_is_seen_by_the_client(lab):
    def asks(w, store):
        r = w.client(store, timeout_s=30)
        r.ping()
        w.mark("connected")
        try:
            r.blpop("nothing", timeout=0)
        except Exception as error:
            return type(error).__name__

    store = lab.redis()
    with lab.run("killed"):
        a = lab.worker("A", asks, store).run_to("connected").start()
        lab.until("A waits", lambda: any(c["cmd"] == "blpop" for c in store.client().client_list()))
        lab.kill(store)
        assert a.join() == "ConnectionError"


def test_forty_workers_at_once(lab):
    def counts(w, store):
        r = w.client(store, timeout_s=30)
        for _ in range(25):
            r.incr("counter")
        return w.address(store)[1]

    store = lab.redis()
    with lab.run("many"):
        workers = [lab.worker(f"W{n}", counts, store) for n in range(40)]
        for worker in workers:
            worker.start()
        ports = [worker.join(60) for worker in workers]
    assert int(store.client().get("counter")) == 1000
    assert len(set(ports)) == 40


def test_a_link_process_that_was_killed_is_told_in_three_lines():
    def dials(w, store):
        w.client(store)

    with Lab("no links") as lab:
        store = lab.redis()
        os.kill(min(descendants(lab._session.keeper_pid)), signal.SIGKILL)  # the keeper's first child
        eventually(lambda: [e for e in lab.timeline.events if e.data.get("of") == "links"], "its exit is recorded")
        with lab.run("cut"):
            a = lab.worker("A", dials, store)
            for verb in (lambda: lab.cut(a, store), a.join):
                with pytest.raises(LabError, match="the links does not answer") as told:
                    verb()
                assert len(str(told.value).splitlines()) == 3
