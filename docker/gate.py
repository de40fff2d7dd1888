"""The one way from the lab's container to the container engine: it lets through what a lab needs, and nothing else.

Whoever may speak to an engine freely is root on its machine. Through here one can make containers of the course's
images, without rights and without folders of the machine, and can handle what was made through here: the gate labels
it with its own mark. Everything else is refused, in the engine's own form of an error. One request a connection.

    gate.py --listen 2375        the engine's socket is /var/run/docker.sock; IMAGES names the images, MARK the mark
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlencode, urlsplit

SOCKET = "/var/run/docker.sock"
MADE, LAB = "labkit.gate", "labkit.lab"  # labels, with the mark: what was made here; the container of the kernels
_MOST_BYTES = 64 << 20
_PULL_S = 1800

# What else the engine knows is refused. It takes a key in any case of letters, so only the exact word counts here.
_CONTAINER = {
    "AttachStderr", "AttachStdin", "AttachStdout", "Cmd", "Entrypoint", "Env", "HostConfig", "Hostname", "Image",
    "Labels", "NetworkingConfig", "OpenStdin", "StdinOnce", "StopSignal", "Tty", "User", "Volumes", "WorkingDir",
}  # fmt: skip
_HOST = {
    "CapDrop", "LogConfig", "Memory", "Mounts", "NetworkMode", "PidsLimit", "ReadonlyRootfs", "SecurityOpt", "Ulimits",
}  # fmt: skip
_MOUNT = {"ReadOnly", "Source", "Target", "Type", "VolumeOptions"}
_EXEC = {"AttachStderr", "AttachStdin", "AttachStdout", "Cmd", "Container", "Env", "Tty", "User", "WorkingDir"}
_NETWORK = {"CheckDuplicate", "Driver", "IPAM", "Internal", "Labels", "Name"}
_VOLUME = {"Driver", "Labels", "Name"}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)


class Refused(Exception):
    """Not for a lab: the text says what, and is sent as the engine's answer."""


Look = Callable[[str], dict]  # what the engine answers to GET on this path; {} if it has no such thing


class Gate:
    """Decides on requests.

    look -- asks the engine; images -- those of which containers may be made; mark -- the value of its labels
    """

    def __init__(self, look: Look, images: set[str], mark: str):
        self._look = look
        self._images = images
        self._mark = mark

    def judge(self, method: str, target: str, body: dict) -> str:
        """The target to ask for in its place: names become ids, which nobody can give to something else meanwhile.

        `body` is changed: what is made gets the mark. Raises Refused.
        """
        parts = urlsplit(target)
        query = parts.query
        version, path = re.fullmatch(r"(/v1\.\d+)?(/.*)", parts.path).groups(default="")
        match method, *path.strip("/").split("/"):
            case ("GET" | "HEAD", "_ping") | ("GET", "version"):
                pass
            case "GET", "images", *name, "json":
                if not _IMAGE.fullmatch("/".join(name)):
                    raise Refused("a name of an image")
            case ("GET", "containers", "json") | ("GET", "networks" | "volumes"):
                query = self._of_what_was_made_here(query)
            case "POST", "containers", "create":
                self._container(body)
            case "GET" | "PUT" | "POST" as method, "containers", name, what if (method, what) in _ON_CONTAINER:
                found = self._ours("containers", name, lab=(method, what) == ("GET", "json"))
                if what == "exec":
                    _only(body, _EXEC, "an exec")
                path = f"/containers/{found['Id']}/{what}"
            case "DELETE", "containers", name:
                path = f"/containers/{self._ours('containers', name)['Id']}"
            case "POST" | "GET", "exec", number, "start" | "json":
                if not _NAME.fullmatch(number):
                    raise Refused("the number of an exec")
                self._ours("containers", self._look(f"/exec/{number}/json").get("ContainerID", ""))
            case "POST", "networks", "create":
                self._marked(_only(body, _NETWORK, "a network"))
                if body.get("Driver") not in (None, "", "bridge") or not body.get("Internal"):
                    raise Refused("a network that is no private bridge")
            case "GET" | "DELETE", "networks", name:
                path = f"/networks/{self._ours('networks', name)['Id']}"
            case "POST", "networks", name, "connect" | "disconnect" as what:
                _only(body, {"Container", "EndpointConfig", "Force"}, "a connection")
                self._ours("containers", str(body.get("Container")), lab=True)
                path = f"/networks/{self._ours('networks', name)['Id']}/{what}"
            case "POST", "volumes", "create":
                self._marked(_only(body, _VOLUME, "a volume"))
            case "GET" | "DELETE", "volumes", name:
                self._ours("volumes", name)
            case _:
                raise Refused(f"{method} {path}")
        return f"{version}{path}" + (f"?{query}" if query else "")

    def _ours(self, kind: str, name: str, lab: bool = False) -> dict:
        """What the engine says about a thing that was made here; lab -- or about the lab's own container."""
        if not _NAME.fullmatch(name):
            raise Refused(f"a name in {kind}")
        found = self._look(f"/{kind}/{name}" + ("/json" if kind == "containers" else ""))
        labels = (found.get("Config") or found).get("Labels") or {}
        if found and labels.get(MADE) != self._mark and not (lab and labels.get(LAB) == self._mark):
            raise Refused(f"{name}, which was not made here")
        return found or {"Id": name}  # the engine itself says that there is none

    def _container(self, body: dict) -> None:
        self._marked(_only(body, _CONTAINER, "a container"))
        if body.get("Image") not in self._images:
            raise Refused(f"a container of the image {body.get('Image')}")
        host = _only(body.get("HostConfig") or {}, _HOST, "a container")
        if not {str(word) for word in host.get("SecurityOpt") or ()} <= {"no-new-privileges", "no-new-privileges:true"}:
            raise Refused("a container with another SecurityOpt")
        log = _only(host.get("LogConfig") or {}, {"Type", "Config"}, "a log")
        if log.get("Type", "json-file") not in ("", "json-file", "local", "none"):
            raise Refused("a container with another LogConfig")
        for mount in host.get("Mounts") or ():
            _only(mount, _MOUNT, "a mount")
            if mount.get("Type") != "volume":
                raise Refused("a mount that is no volume")
            self._ours("volumes", str(mount.get("Source")))  # or one that the engine makes for it now
            options = mount["VolumeOptions"] = mount.get("VolumeOptions") or {}
            self._marked(_only(options, {"Labels", "NoCopy"}, "a volume"))  # a driver may reach any folder
        networking = _only(body.get("NetworkingConfig") or {}, {"EndpointsConfig"}, "a container")
        networks = set(networking.get("EndpointsConfig") or ())
        for network in networks | {host.get("NetworkMode") or "default"}:
            if network != "none" and not self._ours("networks", network).get("Labels"):
                raise Refused(f"a container in the network {network}")

    def _marked(self, body: dict) -> None:
        labels = body["Labels"] = dict(body.get("Labels") or {})
        if LAB in labels:
            raise Refused(f"the label {LAB}")
        labels[MADE] = self._mark

    def _of_what_was_made_here(self, query: str) -> str:
        """What others run is none of a lab's business."""
        words = parse_qs(query)
        filters = json.loads(words.get("filters", ["{}"])[0])
        filters["label"] = [*(filters.get("label") or ()), f"{MADE}={self._mark}"]
        return urlencode({**words, "filters": json.dumps(filters)}, doseq=True)


_ON_CONTAINER = {
    ("GET", "json"), ("GET", "logs"), ("GET", "archive"), ("PUT", "archive"), ("POST", "start"), ("POST", "stop"),
    ("POST", "kill"), ("POST", "pause"), ("POST", "unpause"), ("POST", "wait"), ("POST", "exec"),
}  # fmt: skip


def _only(body: dict, known: set[str], what: str) -> dict:
    """Refuse unknown keys; those that say nothing (clients send many) are left out."""
    for key in [key for key in body if key not in known]:
        if body.pop(key):
            raise Refused(f"{what} with {key}")
    return body


# -- the engine
class _Engine(http.client.HTTPConnection):
    def __init__(self, timeout_s: float | None = 30):
        super().__init__("localhost", timeout=timeout_s)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def look(path: str) -> dict:
    with contextlib.closing(_Engine()) as engine:
        engine.request("GET", path)
        answer = engine.getresponse()
        told = json.loads(answer.read() or b"{}")
    if answer.status not in (200, 404):
        raise Refused(f"the engine did not tell what {path} is")
    return told if answer.status == 200 else {}


def pull(image: str) -> None:
    """Have the image, or say in the log why not."""
    if look(f"/images/{image}/json"):
        return
    print(f"Pulling {image} ...", flush=True)
    name, _, tag = image.rpartition(":")
    with contextlib.closing(_Engine(_PULL_S)) as engine:
        engine.request("POST", f"/images/create?fromImage={quote(name, safe='')}&tag={quote(tag)}")
        told = [json.loads(line) for line in engine.getresponse().read().splitlines() if line.strip()]
    for line in told:
        if why := line.get("error") or line.get("message"):
            print(f"{image} is missing: {why}", file=sys.stderr, flush=True)


# -- the door
class _Handler(BaseHTTPRequestHandler):
    gate: Gate
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        self.close_connection = True
        size = int(self.headers.get("Content-Length") or 0)
        if "Transfer-Encoding" in self.headers or size > _MOST_BYTES:
            return self._refuse("a body without a length, or one that is too long")
        body = self.rfile.read(size)
        try:
            told = json.loads(body) if body and self.command == "POST" else {}
            if not isinstance(told, dict):
                raise ValueError
            target = self.gate.judge(self.command, self.path, told)
        except Refused as refused:
            return self._refuse(str(refused))
        except (ValueError, AttributeError, TypeError, KeyError):
            return self._refuse("what cannot be understood")
        # What was judged is what is sent: written anew, no key stands in it twice.
        self._forward(target, json.dumps(told).encode() if self.command == "POST" and body else body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _pass

    def _refuse(self, what: str) -> None:
        text = json.dumps({"message": f"the course's gate does not let this through: {what}"}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
        print(f"refused: {what}", file=sys.stderr, flush=True)

    def _forward(self, target: str, body: bytes) -> None:
        upgrade = self.headers.get("Upgrade")
        lines = [f"{self.command} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"Content-Type: application/{'x-tar' if self.command == 'PUT' else 'json'}"]
        lines += ["Connection: Upgrade", f"Upgrade: {upgrade}"] if upgrade == "tcp" else ["Connection: close"]
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(SOCKET)
            engine.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            if upgrade == "tcp":
                threading.Thread(target=_copy, args=(self.connection, engine), daemon=True).start()
            _copy(engine, self.connection)
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)  # also ends the thread

    def log_message(self, *_) -> None:
        """Only what is refused is worth a line."""


def _copy(source: socket.socket, drain: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            drain.sendall(data)
        drain.shutdown(socket.SHUT_WR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", type=int, required=True, metavar="PORT")
    port = parser.parse_args().listen
    images = os.environ["IMAGES"].split()
    for image in images:
        pull(image)
    _Handler.gate = Gate(look, set(images), os.environ["MARK"])
    with ThreadingHTTPServer(("", port), _Handler) as server:
        server.daemon_threads = True
        print("The engine can be reached, for labs only.", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
