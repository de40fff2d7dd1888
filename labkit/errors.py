"""Errors a learner can meet: what happened, why that is likely, what to type next. Three lines, no traceback."""


class LabError(Exception):
    """An error told in three lines.

    what -- what happened; why -- why that is likely; todo -- what to type next.
    A notebook shows the three lines and no traceback (IPython asks `_render_traceback_`).
    """

    def __init__(self, what: str, why: str = "", todo: str = ""):
        super().__init__(what, why, todo)  # kept as args, so that it survives pickling
        self.what, self.why, self.todo = what, why, todo

    def __str__(self) -> str:
        return "\n".join(line for line in (self.what, self.why, self.todo) if line)

    def _render_traceback_(self) -> list[str]:
        notes = [line for note in getattr(self, "__notes__", ()) for line in note.splitlines()]
        return [*f"{type(self).__name__}: {self}".splitlines(), *notes]


class Unsupported(LabError):
    """This driver or this machine has no such power; the text gives the reason and the alternative."""


class WorkerError(LabError):
    """A worker was killed, or raised something that cannot travel back."""


class WaitError(LabError):
    """What was waited for did not come within its bound."""


class ServerDied(LabError):
    """A server ended while it was starting; the text shows its last log lines."""


class ClaimError(LabError):
    """A measurement does not support the claim made of it."""
