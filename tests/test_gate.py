"""The gate between the lab's container and the engine: what a lab needs goes through, every way around it does not."""

import copy
import importlib.util
import json
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

_PATH = Path(__file__).resolve().parent.parent / "docker" / "gate.py"
_SPEC = importlib.util.spec_from_file_location("gate", _PATH)
gate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gate)

MARK = {gate.MADE: "course"}
THERE = {  # what the engine has
    "/containers/node/json": {"Id": "c1", "Config": {"Labels": MARK}},
    "/containers/lab/json": {"Id": "c2", "Config": {"Labels": {gate.LAB: "course"}}},
    "/containers/other/json": {"Id": "c3", "Config": {"Labels": {}}},
    "/containers/neighbour/json": {"Id": "c4", "Config": {"Labels": {gate.MADE: "another", gate.LAB: "another"}}},
    "/containers/c1/json": {"Id": "c1", "Config": {"Labels": MARK}},
    "/containers/c3/json": {"Id": "c3", "Config": {"Labels": None}},
    "/networks/net": {"Id": "n1", "Labels": MARK},
    "/networks/host": {"Id": "n2", "Labels": {}},
    "/networks/bridge": {"Id": "n3", "Labels": {}},
    "/volumes/vol": {"Name": "vol", "Labels": MARK},
    "/volumes/others": {"Name": "others", "Labels": None},
    "/exec/e1/json": {"ContainerID": "c1"},
    "/exec/e3/json": {"ContainerID": "c3"},
}
MOUNT = {"Type": "volume", "Source": "new", "Target": "/lab", "VolumeOptions": {"Labels": {"a": "b"}}}
BOX = {
    "Image": "redis:7.4.2",
    "Labels": {"labkit.session": "s1"},
    "Cmd": ["redis-server"],
    "Healthcheck": None,
    "NetworkingConfig": {"EndpointsConfig": {"net": {}}},
    "HostConfig": {
        "NetworkMode": "net",
        "Memory": 1 << 27,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Mounts": [MOUNT],
    },
}
NET = {"Name": "new", "Internal": True, "Driver": "bridge"}


def judge(method, target, body=None):
    return gate.Gate(lambda path: THERE.get(path, {}), {"redis:7.4.2"}, "course").judge(method, target, body or {})


def box(**changes):
    """A request for a container, with some keys of its HostConfig changed."""
    body = copy.deepcopy(BOX)
    body["HostConfig"] |= changes
    return body


@pytest.mark.parametrize(
    "method, target, body, sent",
    [
        ("GET", "/version", {}, "/version"),
        ("GET", "/v1.41/_ping", {}, "/v1.41/_ping"),
        ("GET", "/images/registry.example/redis:7.4.2/json", {}, "/images/registry.example/redis:7.4.2/json"),
        ("POST", "/v1.41/containers/create?name=x", BOX, "/v1.41/containers/create?name=x"),
        ("POST", "/containers/node/kill?signal=KILL", {}, "/containers/c1/kill?signal=KILL"),
        ("PUT", "/containers/node/archive?path=/", {}, "/containers/c1/archive?path=/"),
        ("POST", "/containers/node/exec", {"Cmd": ["dd"], "AttachStdin": True}, "/containers/c1/exec"),
        ("POST", "/exec/e1/start", {}, "/exec/e1/start"),
        ("DELETE", "/containers/node?force=1&v=1", {}, "/containers/c1?force=1&v=1"),
        ("GET", "/containers/lab/json", {}, "/containers/c2/json"),
        ("POST", "/networks/net/connect", {"Container": "lab"}, "/networks/n1/connect"),
        ("POST", "/networks/create", NET, "/networks/create"),
        ("DELETE", "/networks/net", {}, "/networks/n1"),
        ("DELETE", "/volumes/vol", {}, "/volumes/vol"),
        ("DELETE", "/containers/gone", {}, "/containers/gone"),  # the engine says that there is none
    ],
)  # fmt: skip
def test_what_a_lab_needs_goes_through_with_ids_for_names(method, target, body, sent):
    assert judge(method, target, copy.deepcopy(body)) == sent


@pytest.mark.parametrize(
    "method, target, body",
    [
        ("GET", "/info", {}),
        ("POST", "/build", {}),
        ("POST", "/images/create?fromImage=redis&tag=7.4.2", {}),
        ("POST", "/swarm/init", {}),
        ("POST", "/containers/prune", {}),
        ("GET", "/events", {}),
        ("GET", "/containers", {}),
        ("GET", "/containers/other/json", {}),
        ("GET", "/containers/other/logs", {}),
        ("POST", "/containers/other/kill", {}),
        ("POST", "/containers/lab/kill", {}),
        ("GET", "/containers/lab/archive?path=/", {}),
        ("POST", "/containers/lab/exec", {"Cmd": ["sh"]}),
        ("DELETE", "/containers/lab", {}),
        ("POST", "/containers/node/update", {"Memory": 0}),
        ("POST", "/containers/node/exec", {"Cmd": ["sh"], "Privileged": True}),
        ("POST", "/containers/node/exec", {"Cmd": ["sh"], "privileged": True}),
        ("POST", "/exec/e3/start", {}),
        ("POST", "/exec/unknown/start", {}),
        ("POST", "/containers/..%2f..%2finfo/kill", {}),
        ("POST", "/containers/node/../other/kill", {}),
        ("POST", "/networks/host/connect", {"Container": "lab"}),
        ("POST", "/networks/net/connect", {"Container": "other"}),
        ("POST", "/networks/net/connect", {"Container": "lab", "container": "other"}),
        ("POST", "/containers/neighbour/kill", {}),
        ("GET", "/containers/neighbour/json", {}),
        ("POST", "/networks/create", {**NET, "Labels": {gate.LAB: "course"}}),
        ("POST", "/networks/create", {**NET, "Internal": False}),
        ("POST", "/networks/create", {**NET, "Driver": "macvlan"}),
        ("POST", "/networks/create", {**NET, "Options": {"parent": "eth0"}}),
        ("POST", "/volumes/create", {"Name": "v", "DriverOpts": {"o": "bind", "device": "/"}}),
        ("DELETE", "/volumes/others", {}),
        ("DELETE", "/networks/bridge", {}),
        ("POST", "/containers/create", {**BOX, "Image": "ubuntu:24.04"}),
        ("POST", "/containers/create", {**BOX, "Labels": {gate.LAB: "course"}}),
        ("POST", "/containers/create", {**BOX, "labels": {gate.MADE: "another"}}),
        ("POST", "/containers/create", {**BOX, "hostConfig": {"Privileged": True}}),
        ("POST", "/containers/create", {**BOX, "NetworkingConfig": {"EndpointsConfig": {"bridge": {}}}}),
        ("POST", "/containers/create", {**BOX, "NetworkingConfig": {"endpointsConfig": {"bridge": {}}}}),
        ("POST", "/containers/create", box(Privileged=True)),
        ("POST", "/containers/create", box(privileged=True)),
        ("POST", "/containers/create", box(CapAdd=["SYS_ADMIN"])),
        ("POST", "/containers/create", box(PidMode="host")),
        ("POST", "/containers/create", box(Devices=[{"PathOnHost": "/dev/sda"}])),
        ("POST", "/containers/create", box(SecurityOpt=["seccomp=unconfined"])),
        ("POST", "/containers/create", box(LogConfig={"Type": "syslog"})),
        ("POST", "/containers/create", box(VolumesFrom=["other"])),
        ("POST", "/containers/create", box(NetworkMode="host")),
        ("POST", "/containers/create", box(NetworkMode="")),
        ("POST", "/containers/create", box(NetworkMode="container:other")),
        ("POST", "/containers/create", box(Binds=["/:/machine"])),
        ("POST", "/containers/create", box(Binds=["vol:/data"])),
        ("POST", "/containers/create", box(Mounts=[{**MOUNT, "Type": "bind", "Source": "/"}])),
        ("POST", "/containers/create", box(Mounts=[{**MOUNT, "Source": "others"}])),
        ("POST", "/containers/create", box(Mounts=[{**MOUNT, "VolumeOptions": {"DriverConfig": {"Name": "local"}}}])),
    ],
)  # fmt: skip
def test_every_way_around_it_is_refused(method, target, body):
    with pytest.raises(gate.Refused):
        judge(method, target, copy.deepcopy(body))


@pytest.mark.parametrize("asked", [{}, {"label": ["labkit.session=s1"]}, {"label": {"a": True}, "id": ["x"]}])
@pytest.mark.parametrize("path", ["/v1.41/containers/json", "/networks", "/volumes"])
def test_a_list_shows_only_what_was_made_here(path, asked):
    sent = urlsplit(judge("GET", f"{path}?all=1&" + urlencode({"filters": json.dumps(asked)})))
    words = parse_qs(sent.query)
    assert sent.path == path and words["all"] == ["1"]
    expected = {**asked, "label": [*asked.get("label", ()), f"{gate.MADE}=course"]}
    assert json.loads(words["filters"][0]) == expected


def test_what_is_made_gets_the_mark_and_what_says_nothing_is_left_out():
    body = {**copy.deepcopy(BOX), "internal": False, "Runtime": ""}
    judge("POST", "/containers/create", body)
    expected = copy.deepcopy(BOX)
    del expected["Healthcheck"]
    expected["Labels"] |= MARK
    expected["HostConfig"]["Mounts"][0]["VolumeOptions"]["Labels"] |= MARK
    assert body == expected
