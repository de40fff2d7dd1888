"""Judges: pure functions from a Timeline to a Verdict. They never touch a server, and they show their evidence.

A verdict is one of three: it holds, it is violated, or it cannot be judged because the record does not tell.
(Jepsen's checkers taught the field the third.) Every judge reads names and data that the experiment chose, so each
says which in its docstring, and says "cannot be judged" rather than "holds" when it finds none of them.
"""

from .durability import acknowledged_kept
from .exclusion import mutual_exclusion
from .limits import within_limit
from .messages import at_least_once, at_most_once, order_kept
from .resource import history, no_lost_update, token_order
from .verdict import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict

__all__ = [
    "HOLDS", "UNJUDGED", "VIOLATED", "Evidence", "Verdict", "acknowledged_kept", "at_least_once", "at_most_once",
    "history", "mutual_exclusion", "no_lost_update", "order_kept", "token_order", "within_limit",
]  # fmt: skip
