import socket
import sys
from pathlib import Path

import cloudpickle
import httpx
import pytest
from crash import processes_left

from labkit import Lab, ServerDied, Unsupported, programs
from labkit.processes import descendants

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are
pytestmark = pytest.mark.skipif(not programs.find("nginx"), reason="nginx is not on this machine")


@pytest.fixture
def lab():
    with Lab("nginx") as lab:
        yield lab


def family(node) -> list[int]:
    return [node.pid, *descendants(node.pid)]


def test_it_serves_files(lab):
    web = lab.nginx(files={"index.html": "home", "a/b c.txt": "ä"}, config="location /no { return 403; }")
    with web.client() as client:
        assert client.get("/").text == "home"
        assert client.get("/a/b c.txt").content == "ä".encode()
        assert [client.get("/missing").status_code, client.get("/no").status_code] == [404, 403]
    assert {Path(f"/proc/{pid}/comm").read_text().strip() for pid in family(web)} == {"nginx"}


def test_its_worker_never_runs_as_root(lab):
    web = lab.nginx()
    uids = [int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[1]) for pid in family(web)]
    assert len(uids) == 2 and uids[1] != 0


def test_a_wrong_configuration_is_told_with_its_own_words(lab):
    with pytest.raises(ServerDied, match="limit_reqq"):
        lab.nginx("limit_reqq zone=z;")
    assert lab.nginx().client().get("/").text == "hello\n"


def at_once(lab, web, n: int) -> list[tuple[int, float]]:
    """n requests that nginx finds all at the same moment: it sleeps while they are sent. [(status, seconds it took)]"""
    sockets = [socket.create_connection((web.host, web.port), 5) for _ in range(n)]
    lab.pause(web)
    for sock in sockets:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
    lab.resume(web)
    told = []
    for sock in sockets:
        with sock, sock.makefile("rb") as answer:
            status, *lines = answer.read().decode().split("\r\n\r\n")[0].splitlines()
            took = next(line.split(": ")[1] for line in lines if line.startswith("Took"))
            told.append((int(status.split()[1]), float(took)))
    return told


@pytest.mark.parametrize(
    "burst, passed, delayed", [("", 1, 0), ("burst=5", 6, 5), ("burst=5 nodelay", 6, 0), ("burst=5 delay=3", 6, 2)]
)
def test_ten_requests_at_once_under_two_a_second(lab, burst, passed, delayed):
    web = lab.nginx(
        f"location / {{ limit_req zone=z {burst}; add_header Took $request_time always; }}",
        http="limit_req_zone $binary_remote_addr zone=z:1m rate=2r/s;",
    )
    with lab.run("ten at once"):
        answers = at_once(lab, web, 10)
    took = sorted(seconds for status, seconds in answers if status == 200)
    assert (len(took), [status for status, _ in answers].count(503)) == (passed, 10 - passed)
    assert web.log.count("delaying request") == delayed
    late = took[passed - delayed :]
    assert all(seconds > 0.5 * n - 0.05 for n, seconds in enumerate(late, 1)), took  # one each half second


def test_a_limit_on_return_limits_nothing(lab):
    """`return` answers in an earlier phase than the limit works in, so a lesson must serve a file."""
    web = lab.nginx(
        "location / { limit_req zone=z; return 200; add_header Took $request_time always; }",
        http="limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m;",
    )
    with lab.run("ten at once"):
        assert [status for status, _ in at_once(lab, web, 10)] == [200] * 10


def fetch(w, web):
    client = w.client(web, timeout_s=0.4)
    first = client.get("/").status_code
    w.mark("connected")
    with w.span("asks"):
        client.get("/")
    return first


@pytest.mark.parametrize("fault", ["cut", "pause", "kill"])
def test_faults_are_seen_by_the_client(lab, fault):
    web = lab.nginx()
    pids = family(web)
    with lab.run(fault) as e:
        a = lab.worker("A", fetch, web).run_to("connected")
        lab.cut(a, web) if fault == "cut" else getattr(lab, fault)(web)
        with pytest.raises(httpx.TransportError):
            a.join()
        assert [s.outcome for s in e.timeline.spans("asks")] == ["unknown"]
        if fault == "cut":
            assert web.client().get("/").status_code == 200
            lab.heal(a, web)
        elif fault == "pause":
            lab.resume(web)
        else:
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            lab.restart(web, data="kept")
        assert lab.worker("B", fetch, web).join() == 200


def test_there_is_nothing_to_observe(lab):
    web = lab.nginx()
    with lab.run("watch"), pytest.raises(Exception, match="observer") as error:
        lab.watch(web, "/")
    assert isinstance(error.value, Unsupported) or "Unsupported" in str(error.value)


def test_nothing_is_left_of_a_killed_kernel():
    before, left = processes_left("a, b = lab.nginx(), lab.nginx(); lab.pause(a)")
    assert before.count("nginx") == 4
    assert not left
