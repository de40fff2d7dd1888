"""Set-up and the commands: what a learner types, from the clone to the link."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement

from labkit import __main__ as command_line
from labkit import notebooks, programs
from labkit.errors import LabError

PROJECT = Path(notebooks.__file__).parent.parent
LOCK = (PROJECT / "requirements.lock").read_text()
NOT_AT_FIRST = ("playwright",)  # make test-browser installs it


# The files that set-up reads


def dependencies() -> list[Requirement]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(text) for text in [*project["dependencies"], *(text for extra in extras for text in extra)]]


def locked() -> dict[str, str]:
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line) for line in lines)  # no host, no path
    return {name.lower(): release for name, release in (line.split("==") for line in lines)}


@pytest.mark.parametrize("wanted", dependencies(), ids=str)
def test_each_dependency_is_locked_within_its_bounds_and_installed_so(wanted):
    release = locked()[wanted.name.lower()]
    assert {bound.operator for bound in wanted.specifier} == {">=", "<"}
    assert wanted.specifier.contains(release)
    if wanted.name not in NOT_AT_FIRST:
        assert version(wanted.name) == release


def test_the_build_backend_is_locked_too():
    assert "setuptools" in locked()


def test_conda_asks_for_the_same():
    text = (PROJECT / "environment.yml").read_text()
    assert "-c requirements.lock" in text and "-e .[queues,database,libraries,test]" in text
    assert f"redis-server>={programs.TABLE['redis-server'].least}" in text


# Make, where Python does not do


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "a clone é"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(PROJECT / name, folder)
    return folder


def python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "what", "todo"),
    [
        (None, "missing, or older than Python 3.11", "make setup PYTHON=python3.11"),
        ("exit 1", "missing, or older than Python 3.11", "make setup PYTHON=python3.11"),
        (
            'case "$2" in *ensurepip*) exit 1 ;; esac',
            "cannot make a virtual environment",
            "apt-get install python3-venv",
        ),
    ],
)
def test_make_says_what_is_wrong_with_python(clone, tmp_path, monkeypatch, body, what, todo):
    folder = tmp_path / "bin"
    folder.mkdir()
    name = "python3" if body else "python3-is-not-here"
    if body:
        python(folder / name, body)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    done = subprocess.run(["make", "setup", f"PYTHON={name}"], cwd=clone, capture_output=True, text=True)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make") and "not found" not in line]
    assert len(lines) == 3
    assert what in lines[0] and todo in lines[2]
    assert not (clone / ".venv").exists()


def test_make_takes_a_python_under_another_name(clone, tmp_path):
    stub = python(tmp_path / "python3.99", f'echo "$@" >> "{tmp_path}/asked"; [ "$2" != venv ] || exit 7')
    done = subprocess.run(["make", "setup", f"PYTHON={stub}"], cwd=clone, capture_output=True, text=True)
    assert done.returncode != 0
    assert "-m venv --clear .venv" in (tmp_path / "asked").read_text()


# The command line


def test_setup_twice_installs_nothing(capsys):
    assert command_line.main(["setup", "redis-server"]) == 0
    first = capsys.readouterr().out
    assert command_line.main(["setup", "redis-server"]) == 0
    assert capsys.readouterr().out == first
    assert first.startswith("Redis ") and "Installing" not in first


def test_setup_goes_on_without_a_compiler_but_not_without_redis(monkeypatch, capsys):
    def refuse(names=None):
        raise LabError("what", "why", "todo")

    monkeypatch.setattr(programs, "install", refuse)
    monkeypatch.setattr(programs, "missing", lambda names=None: (programs.TABLE["cc"],))
    assert command_line.main(["setup"]) == 0
    assert capsys.readouterr().err.splitlines()[:3] == ["what", "why", "todo"]
    assert command_line.main(["setup", "cc"]) == 1
    monkeypatch.setattr(programs, "missing", lambda names=None: (programs.TABLE["redis-server"],))
    assert command_line.main(["setup"]) == 1


def test_an_unknown_program(capsys):
    assert command_line.main(["setup", "rediss"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3


# Notebooks


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A folder of notebooks of our own, at a path with a space and a letter outside ASCII."""
    folder = tmp_path / "notebooks é x"
    folder.mkdir()
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    for name in list(os.environ):
        if name.startswith(("JUPYTER", "IPYTHON")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "learner"))
    return folder


def write(path: Path, *cells: str) -> None:
    book = nbformat.v4.new_notebook()
    head = nbformat.v4.new_code_cell('DRIVER, QUICK = "auto", False', metadata={"tags": ["parameters"]})
    book.cells = [head, *map(nbformat.v4.new_code_cell, cells)]
    nbformat.write(book, path)


def test_notebooks_are_called_by_number_or_name(course):
    for name in ("00-start-here", "07a-windows", "11-decisions"):
        write(course / f"{name}.ipynb")
    for which, stem in {
        "00": "00-start-here",
        "0": "00-start-here",
        "00-start-here": "00-start-here",
        "11-decisions.ipynb": "11-decisions",
        "07a": "07a-windows",
        "7a": "07a-windows",
    }.items():
        assert notebooks.find(which).stem == stem
    for which in ("07", "12", "start", "../00-start-here", ""):
        with pytest.raises(LabError) as caught:
            notebooks.find(which)
        assert len(str(caught.value).splitlines()) == 3 and "11-decisions" in str(caught.value)


def test_run_gives_the_parameters_and_the_kernel_of_this_environment(course, tmp_path, capsys):
    write(
        course / "00-start-here.ipynb",
        "import pathlib, sys",
        f"assert sys.prefix == {sys.prefix!r}",
        "assert (DRIVER, QUICK) == ('local', True)",
        f"assert pathlib.Path.cwd() == pathlib.Path({str(course)!r})",
    )
    before = (course / "00-start-here.ipynb").read_bytes()
    assert command_line.main(["run", "0", "--driver", "local", "--quick"]) == 0
    assert capsys.readouterr().out.startswith("00-start-here: ok")
    assert (course / "00-start-here.ipynb").read_bytes() == before
    assert [path.name for path in course.iterdir()] == ["00-start-here.ipynb"]
    assert not (tmp_path / "learner").exists()  # nothing of the learner's own was touched


def test_run_shows_the_cell_that_failed(course, capsys):
    write(course / "00-start-here.ipynb", "x = 1", "assert x == 2, 'x is one'", "print('not reached')")
    assert command_line.main(["run", "00"]) == 1
    shown = capsys.readouterr().err
    assert "assert x == 2" in shown and "AssertionError" in shown and "x is one" in shown


def test_run_survives_a_kernel_that_dies(course, capsys):
    write(course / "00-start-here.ipynb", "import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")
    assert command_line.main(["run", "00"]) == 1
    assert "died" in capsys.readouterr().err


def test_settings_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    with pytest.raises(LabError, match="LABKIT_HOME"):
        notebooks.private_settings()


# JupyterLab


@pytest.fixture
def open_lab(course, tmp_path):
    """JupyterLab on notebooks of our own, as a process; the port it wanted is taken, and its link has been printed."""
    write(course / "00-start-here.ipynb")
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    code = (
        "import pathlib, sys; from labkit import notebooks, serve; "
        f"notebooks.FOLDER = pathlib.Path({str(course)!r}); sys.exit(serve.main({port}))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with open(tmp_path / "errors", "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "http" in line:
            break
    assert f":{port}/" not in printed[-1]
    yield process, "".join(printed), tmp_path / "errors"
    taken.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_one_link_opens_the_first_notebook(open_lab, labkit_home, end):
    process, printed, errors = open_lab
    (link,) = re.findall(r"http\S+", printed)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/lab/tree/00-start-here\.ipynb\?token=[\w-]{20,}", link)
    with urllib.request.urlopen(link, timeout=30) as page:
        body = page.read().decode()
    assert re.search(r'"news": *\{"disabled": *true\}', body)
    base, token = link.split("/lab/tree/")[0], link.split("?")[1]
    with urllib.request.urlopen(f"{base}/api/contents/00-start-here.ipynb?content=0&{token}", timeout=30) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{base}/api/contents", timeout=30)
    start = urllib.request.Request(f"{base}/api/kernels?{token}", data=b'{"name": "python3"}', method="POST")
    with urllib.request.urlopen(start, timeout=30) as answer:
        assert answer.status == 201

    os.killpg(process.pid, end)
    rest = process.stdout.read()
    assert process.wait(60) == 0
    assert "http" not in rest
    assert "The laboratory is closed." in errors.read_text()
    left = [path.name for path in (labkit_home / "jupyter" / "runtime").iterdir()]
    assert left == ["jupyter_cookie_secret"]  # the kernel and the server have tidied up


def test_a_course_without_its_first_notebook(course):
    from labkit import serve

    with pytest.raises(LabError, match="whole clone"):
        serve.main()
