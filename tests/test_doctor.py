"""Doctor: its report on this machine, and on machines that lack something."""

import importlib.metadata
import json
from collections import namedtuple
from pathlib import Path

import pytest

from labkit import __main__ as command_line
from labkit import doctor, programs, session


def findings(capsys, *arguments: str) -> tuple[int, dict]:
    code = command_line.main(["doctor", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def named(report: dict, name: str) -> dict:
    (found,) = [finding for finding in report["findings"] if finding["name"] == name]
    return found


def test_this_machine_is_ready(capsys):
    code, report = findings(capsys)
    assert (code, report["ready"]) == (0, True)
    assert named(report, "Redis")["found"].endswith(str(programs.find("redis-server").path))
    assert {finding["topic"] for finding in report["findings"]} >= {"python", "package", "program", "linux", "folder"}
    assert all(finding["ok"] or finding["todo"] for finding in report["findings"])


def test_the_table_has_a_line_for_each_finding(capsys):
    assert doctor.main() == 0
    printed = capsys.readouterr().out.splitlines()
    for finding in doctor.examine():
        (line,) = [line for line in printed if finding.name in line.split("  ", 1)[0] or f" {finding.name} " in line][
            :1
        ]
        assert finding.topic in line
    assert printed[-1].startswith("Ready")


def test_without_redis(monkeypatch, capsys):
    monkeypatch.setattr(programs, "find", lambda name: None)
    code, report = findings(capsys)
    assert (code, report["ready"]) == (1, False)
    redis = named(report, "Redis")
    assert redis["vital"] and not redis["ok"] and redis["todo"]
    assert not named(report, "local")["ok"]
    assert doctor.main() == 1
    assert "LACKING" in capsys.readouterr().out


def test_without_what_only_later_chapters_use(monkeypatch, capsys):
    here = programs.find
    monkeypatch.setattr(programs, "find", lambda name: here(name) if name == "redis-server" else None)
    code, report = findings(capsys)
    assert (code, report["ready"]) == (0, True)
    assert "chapters 02" in named(report, "etcd")["found"] and not named(report, "etcd")["vital"]


def test_packages_against_their_bounds(monkeypatch, capsys):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1" if name == "redis" else version(name))
    code, report = findings(capsys)
    assert code == 1
    assert not named(report, "redis")["ok"] and named(report, "redis")["found"].startswith("0.1 (")
    assert named(report, "kazoo")["ok"]


def test_a_package_that_is_gone(monkeypatch, capsys):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, report = findings(capsys)
    assert code == 1
    assert named(report, "kazoo")["vital"] and not named(report, "kazoo")["ok"]
    assert not named(report, "hypothesis")["vital"]


@pytest.mark.parametrize("power", ["_has_pidfd", "_has_subreaper"])
def test_an_old_linux(monkeypatch, capsys, power):
    monkeypatch.setattr(doctor, power, lambda: False)
    code, report = findings(capsys)
    assert code == 1
    assert "5.3" in named(report, power.removeprefix("_has_"))["todo"]


def test_a_full_disk(monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(10**10, 10**10, 10**6))
    code, report = findings(capsys)
    assert code == 1
    assert "1 MB free" in named(report, "records")["found"] and "LABKIT_HOME" in named(report, "records")["todo"]


def test_a_folder_that_is_not_there_yet(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_TMP", str(tmp_path / "later" / "on"))
    assert session.scratch() == tmp_path / "later" / "on"
    data = [finding for finding in doctor.examine() if finding.name == "servers' data"]
    assert data[0].ok and not (tmp_path / "later").exists()


def test_file_systems(monkeypatch):
    assert doctor.file_system(Path("/proc/self")) == "proc"
    table = "21 1 8:1 / / rw - ext4 /dev/a rw\n22 21 0:5 / /a\\040b rw shared:1 - tmpfs tmpfs rw\n"
    monkeypatch.setattr(Path, "read_text", lambda path, **options: table)
    assert doctor.file_system(Path("/a b/c")) == "tmpfs"
    assert doctor.file_system(Path("/a")) == "ext4"
