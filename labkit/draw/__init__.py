"""Pictures of a record: pure functions from a Timeline (and a Verdict, and measured numbers) to a Picture."""

from .band import backlog, band
from .curves import curves
from .lives import lives
from .pairs import pairs
from .picture import Picture
from .strip import strip
from .timeline import timeline
from .tree import tree

__all__ = ["Picture", "backlog", "band", "curves", "lives", "pairs", "strip", "timeline", "tree"]
