"""Functions travel to a worker by value, and their source lines travel with them, so that tracebacks can be read.

cloudpickle alone replaces the file name in code objects, and a traceback without its file name has no lines.
"""

import io
import linecache
import marshal
import pickle
import traceback
import types

import cloudpickle

from .errors import LabError


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file):
        super().__init__(file)
        self.sources: dict[str, tuple[str, list[str]]] = {}

    def reducer_override(self, obj):
        if isinstance(obj, types.CodeType):
            name = obj.co_filename
            if name not in self.sources and (lines := linecache.getlines(name)):
                self.sources[name] = (_cell_name(name), lines)
            return marshal.loads, (marshal.dumps(obj),)
        return super().reducer_override(obj)


def _cell_name(filename: str) -> str:
    """'Cell In[5]' for the file name that IPython gives a cell, else the name itself."""
    try:
        told = get_ipython().compile.format_code_name(filename)  # type: ignore[name-defined]
    except (NameError, AttributeError):
        told = None
    return " ".join(told) if told else filename


def pack(function, args, kwargs) -> tuple[bytes, dict]:
    """Returns (bytes, sources). Raises LabError when something in it cannot leave this process."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((function, args, kwargs))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise LabError(
            f"{name} cannot be shipped to a worker: {why.rstrip('.')}.",
            "It, or an argument, refers to something that lives in this process only (a lab, a client, an open file).",
            "Pass nodes as arguments and make clients inside the function: r = w.client(store).",
        ) from None
    return file.getvalue(), pickler.sources


def unpack(blob: bytes, sources: dict):
    for name, (_, lines) in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return pickle.loads(blob)


def traceback_text(error: BaseException, sources: dict) -> str:
    """The error's traceback in the notebook's words: only frames of shipped code, cells named as IPython names them."""
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in sources:
            lines.append(f"  {sources[frame.filename][0]}, line {frame.lineno}, in {frame.name}")
            if frame.line:
                lines.append(f"    {frame.line}")
    return "\n".join(lines)
