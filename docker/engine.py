"""An engine for the tests: the one that answers, or one of our own for as long as the tests take.

Ours leaves the machine as it is: no bridge stays, nothing is switched on for the next boot, and no rule in its
firewall, unless the machine lets packets go from network to network: then labs are kept apart by rules.
Its images are kept in the course's own folder, so that the next time nothing is built again.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker

from labkit import programs
from labkit.engine import Engine, told
from labkit.errors import LabError
from labkit.session import home

AGAIN = "make test-docker"  # the last word of an error
_START_S = 60
_STOP_S = 60
_QUIET = ("--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
_DEFAULT_BRIDGE = Path("/sys/class/net/docker0")
# A container's own mounts, processes and network, and a bridge between two of them (SIOCBRADDBR).
_POSSIBLE = "import fcntl, socket; fcntl.ioctl(socket.socket(), 0x89A0, b'labkit0')"


class Impossible(LabError):
    """No container can run in this place, whatever is installed."""


@contextlib.contextmanager
def running() -> Iterator[None]:
    """As long as this lasts an engine answers at DOCKER_HOST, in the environment; if it was started here, it ends here.

    Raises Impossible or LabError.
    """
    try:
        os.environ["DOCKER_HOST"] = Engine().url
    except LabError as error:
        _may_start(error)
    else:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="labkit-engine-") as folder, _daemon(Path(folder)) as address:
        os.environ["DOCKER_HOST"] = address
        try:
            yield
        finally:
            _empty(address)


def _empty(address: str) -> None:
    """Tests that were killed leave something behind, and the bridge of a network would stay when the engine ends."""
    with told("The engine of the tests was emptied"), contextlib.closing(docker.DockerClient(address)) as client:
        for container in client.containers.list(all=True):
            container.remove(force=True, v=True)
        client.networks.prune()
        client.volumes.prune()


def install(program: str, *packages: str) -> str:
    """The path of a program, after its packages were installed if it was missing."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    if not shutil.which(program, path=path):
        print(f"Installing {' '.join(packages)} with apt-get. No service is started or switched on.", flush=True)
        subprocess.run(["sh", programs.APT, "/", *packages], stdout=subprocess.DEVNULL, check=False)
    found = shutil.which(program, path=path)
    if not found:
        raise LabError(
            f"{program} is not on this machine, and could not be installed.",
            f"apt-get may be missing or offline, or know no package {packages[0]}: see the lines above.",
            f"Install it in this system's own way, then type again: {AGAIN}",
        )
    return found


def _may_start(why_none: LabError) -> None:
    if os.geteuid():
        raise LabError(
            f"No container engine can be used, and only root may start one. {why_none.what}",
            "Docker may be missing or stopped, or you may lack the right to use it (the group docker).",
            f"Start it (sudo systemctl start docker), or name another one in DOCKER_HOST; then type again: {AGAIN}",
        )
    if os.environ.get("DOCKER_HOST"):
        raise why_none  # somebody meant that one
    tried = ["unshare", "--mount", "--net", "--pid", "--fork", sys.executable, "-c", _POSSIBLE]
    done = subprocess.run(tried, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    if done.returncode:
        raise Impossible(
            f"Containers cannot run in this place: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}.",
            "It is probably a container itself, without the rights to make more, or its kernel has no bridge networks.",
            f"Name an engine elsewhere in DOCKER_HOST, or use a whole machine; then type again: {AGAIN}",
        )


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[str]:
    path = install("dockerd", "docker.io")
    # It ends with us, also when we are killed; and it mounts nothing where others see it.
    before = ["setpriv", "--pdeathsig=TERM", "unshare", "--mount"]
    bridge = [] if _DEFAULT_BRIDGE.exists() else ["--bridge=none"]  # without one it would remove that of another engine
    address, log = f"unix://{folder}/docker.sock", folder / "log"
    places = [f"--data-root={home() / 'engine'}", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    print("Starting a container engine; it is stopped at the end.", flush=True)
    with log.open("wb") as out:
        daemon = subprocess.Popen(
            [*before, path, *_QUIET, *_firewall(), *bridge, *places, f"--host={address}"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C is for us: we end it last
        )
    try:
        _wait(daemon, address, log)
        yield address
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _firewall() -> list[str]:
    """Rules are needed where the machine lets packets go from network to network, or drops them within one as well.

    Another engine, or a VPN, may have wished so; of itself a machine does neither.
    """
    asked = [install("iptables", "iptables"), "--list-rules", "FORWARD"]
    rules = subprocess.run(asked, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    forwards = Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "1"
    return [] if forwards or "-P FORWARD DROP" in rules else ["--iptables=false"]


def _wait(daemon: subprocess.Popen, address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and daemon.poll() is None:
        with contextlib.suppress(LabError):
            Engine(address)
            return
        time.sleep(0.1)
    last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
    how = f"ended with {daemon.returncode}" if daemon.poll() is not None else f"did not answer within {_START_S} s"
    raise LabError(
        f"The container engine was started, and {how}.",
        f"Its last words: {last[-600:] or 'none'}",
        f"Start one by hand (dockerd) and read what it says, or name another in DOCKER_HOST; then: {AGAIN}",
    )
