"""The laboratory of the course: real servers, real faults, a record of what happened, and judges of it."""

from importlib import import_module

__version__ = "0.1.0"

# Loaded on first use: a keeper or a worker imports only what it needs.
_HOMES = {
    "Lab": "lab",
    "Timeline": "record",
    "LabError": "errors",
    "Unsupported": "errors",
    "WaitError": "errors",
    "WorkerError": "errors",
    "ServerDied": "errors",
    "ClaimError": "errors",
    "Panel": "panel",
    "claim": "notes",
    "discuss": "notes",
    "predict": "notes",
    "expect": "notes",
    "recall": "notes",
    "claims_table": "notes",
    "keep_rows": "notes",
    "kept_rows": "notes",
    "table": "notes",
    "progress": "notes",
    "attempt": "exercise",
}
_MODULES = ("check", "draw")

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
