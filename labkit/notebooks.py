"""The notebooks of the course: where they are, Jupyter's settings for them, and running one from the command line."""

import os
import sys
import tempfile
import time
from pathlib import Path

from .errors import LabError
from .session import home

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
_START_TIMEOUT_S = 240  # a loaded machine may need long to start a kernel
_CELL_TIMEOUT_S = 600


def find(which: str) -> Path:
    """The notebook called `which`: its number ('01' or '1') or its name ('01-locks', with or without .ipynb).

    Raises LabError if there is none.
    """
    word = which.removesuffix(".ipynb")
    known = sorted(FOLDER.glob("[0-9][0-9]*.ipynb"))
    for path in known:
        number = path.stem.split("-")[0]
        if word in (path.stem, number, number.removeprefix("0")):
            return path
    raise LabError(
        f"There is no notebook {which!r} in {FOLDER}.",
        "Notebooks are called by their number or their whole name.",
        f"Take one of: {', '.join(path.stem for path in known) or 'none is here; is this the whole clone?'}",
    )


def private_settings() -> None:
    """Give Jupyter and IPython folders of the project's own, here and in what this process starts.

    The learner's own settings are neither read nor changed, and the only kernel is that of this environment.
    Raises LabError if the folder cannot be written.
    """
    for variable in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"):
        os.environ.pop(variable, None)
    for variable, name in (
        ("JUPYTER_CONFIG_DIR", "config"),
        ("JUPYTER_DATA_DIR", "data"),
        ("JUPYTER_RUNTIME_DIR", "runtime"),
        ("IPYTHONDIR", "ipython"),
    ):
        folder = home() / "jupyter" / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(
                f"Jupyter's settings cannot be written to {folder}: {error.strerror}.",
                "The folder of the course may be read-only, or belong to somebody else.",
                "Name another one: export LABKIT_HOME=/a/folder/of/yours",
            ) from None
        os.environ[variable] = str(folder)
    profile = home() / "jupyter" / "ipython" / "profile_default"
    profile.mkdir(exist_ok=True)
    # A new kernel warns on the terminal that it listens on TCP; here that is loopback, and every message is signed.
    (profile / "ipython_kernel_config.json").write_text('{"IPKernelApp": {"log_level": 40}}\n')


def run(which: str, driver: str = "auto", quick: bool = False) -> int:
    """Run a notebook from top to bottom in a kernel of its own. Returns 0, or 1 after showing the cell that failed."""
    path = find(which)
    private_settings()
    import papermill  # takes a second to import, and nothing else here needs it
    from nbclient.exceptions import CellTimeoutError

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labkit-run-") as folder:
        try:
            papermill.execute_notebook(
                path,
                Path(folder) / path.name,
                parameters={"DRIVER": driver, "QUICK": quick},
                kernel_name="python3",
                language="python",
                cwd=path.parent,
                progress_bar=sys.stderr.isatty(),
                start_timeout=_START_TIMEOUT_S,
                execution_timeout=_CELL_TIMEOUT_S,
            )
        except papermill.PapermillExecutionError as error:
            print(f"{path.stem}: cell {error.cell_index} failed.\n\n{error.source}\n", file=sys.stderr)
            print("\n".join(error.traceback) or f"{error.ename}: {error.evalue}", file=sys.stderr)
            return 1
        except (CellTimeoutError, RuntimeError) as error:  # RuntimeError: the kernel did not start in time, or died
            print(f"{path.stem}: {str(error).strip() or 'the kernel died.'}", file=sys.stderr)
            return 1
    print(f"{path.stem}: ok, {time.monotonic() - began:.0f} s")
    return 0
