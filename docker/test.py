"""`make test-docker`: the contract of the drivers, and every notebook, on containers."""

import os
import subprocess
import sys
from pathlib import Path

import compose
import engine
import images

from labkit.errors import LabError

_COURSE = Path(__file__).resolve().parent.parent
_TESTS = [
    "tests/test_contract.py",
    "tests/test_docker.py",
    "tests/test_compose.py",
    "tests/test_notebooks.py::test_a_notebook_runs",
]


def main(arguments: list[str]) -> int:
    try:
        with engine.running():
            print("The images, and what runs in their place:", flush=True)
            os.environ |= images.ready()
            compose.ready()
            command = [sys.executable, "-m", "pytest", "--driver", "docker", *_TESTS, *arguments]
            return subprocess.run(command, cwd=_COURSE).returncode
    except engine.Impossible as error:
        print(f"NOT TESTED on containers.\n{error}", file=sys.stderr)
        return 0
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
