"""The ways between members of a cluster. What cutting them does to real members: test_etcd, test_zookeeper."""

import socket
import threading
from types import SimpleNamespace

import pytest

from labkit import Lab, Unsupported, links

OPENED = b"\x05\x00\x00\x01" + bytes(6)
REFUSED = b"\x05\x05\x00\x01" + bytes(6)


@pytest.fixture(scope="module")
def lab():
    with Lab("peers") as lab:
        yield lab


@pytest.fixture
def way(lab):
    """(path of the links, a peer that says everything back, the proxy of member 'a' to it)"""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    peer = SimpleNamespace(name="b", host="127.0.0.1", ports={"client": 1, "peer": listener.getsockname()[1]})
    path = f"{lab._session.folder}/links.sock"
    yield path, peer, links.open_proxy(path, SimpleNamespace(name="a"), [peer])
    links.cut_link(path, "a", "b", None)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def echo(connection):
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)


def knock(proxy: int, port: int, host: str = "192.0.2.1", in_pieces: bool = False) -> socket.socket:
    """A connection that has asked the proxy for the way to this port."""
    sock = socket.create_connection(("127.0.0.1", proxy), 5)
    greeting = b"\x05\x02\x00\x02"  # without a password, or with one
    request = b"\x05\x01\x00\x01" + socket.inet_aton(host) + port.to_bytes(2)
    for part in (greeting, request):
        for piece in [part[i : i + 1] for i in range(len(part))] if in_pieces else [part]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(piece)
        if part is greeting:
            assert sock.recv(2) == b"\x05\x00"
    return sock


def ended(sock) -> bool:
    try:
        return sock.recv(10) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("in_pieces", [False, True])
def test_the_way_leads_to_the_peer_whatever_address_it_is_asked_for(way, in_pieces):
    _, peer, proxy = way
    with knock(proxy, peer.ports["peer"], in_pieces=in_pieces) as sock:
        assert sock.recv(10) == OPENED
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello"


def test_a_peer_that_does_not_listen_refuses(way):
    path, _, proxy = way
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        port = held.getsockname()[1]
        links.open_proxy(
            path, SimpleNamespace(name="a"), [SimpleNamespace(name="c", host="127.0.0.1", ports={"": 1, "p": port})]
        )
        with knock(proxy, port) as sock:
            assert sock.recv(10) == REFUSED
            assert sock.recv(1) == b""


def test_no_way_leads_elsewhere(way, lab):
    _, _, proxy = way
    store = lab.redis()
    with knock(proxy, store.port) as sock:
        assert ended(sock)


def test_a_cut_way_swallows_old_connections_and_new_ones(way):
    path, peer, proxy = way
    old = knock(proxy, peer.ports["peer"])
    assert old.recv(10) == OPENED
    links.cut_link(path, "a", "b", "black hole")
    old.sendall(b"lost")
    new = knock(proxy, peer.ports["peer"])
    for sock in (old, new):
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(10)
        sock.settimeout(5)
    links.cut_link(path, "a", "b", None)
    for sock in (old, new):  # what lost something cannot go on
        with sock:
            assert ended(sock)
    with knock(proxy, peer.ports["peer"]) as sock:
        assert sock.recv(10) == OPENED


def test_only_some_servers_have_peers(lab):
    store = lab.redis()
    with pytest.raises(Unsupported) as error:
        lab.cut_peers(store)
    assert len(str(error.value).splitlines()) == 3
    assert lab.leader([store]) is None
