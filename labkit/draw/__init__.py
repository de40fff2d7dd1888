"""Pictures of a record: pure functions from a Timeline (and a Verdict, and measured numbers) to a Picture."""

from .picture import Picture
from .timeline import timeline

__all__ = ["Picture", "timeline"]
