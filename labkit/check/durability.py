"""Is what was acknowledged still there?"""

from ..record import Timeline
from .verdict import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict, count, few


def acknowledged_kept(timeline: Timeline, acknowledged: str = "ack", found: str = "found") -> Verdict:
    """Every write that was acknowledged before the last look is found in it.

    Needs `w.mark("ack", write=id)` at each acknowledgement, and at the end one look, `w.mark("found", writes=[ids])`,
    with an empty list if nothing was there; of several looks the last counts. Ids are compared as text. A write that
    was acknowledged after the last look cannot be judged, unless another one is lost already.
    Evidence: the acknowledgement of each lost write.
    """
    rule = "acknowledged writes kept"
    acks = [e for e in timeline.marks(acknowledged) if "write" in e.data]
    looks = [e for e in timeline.marks(found) if isinstance(e.data.get("writes"), list | tuple)]
    if not acks:
        return Verdict(rule, UNJUDGED, f"this record has no mark {acknowledged!r} with a 'write'")
    if not looks:
        return Verdict(rule, UNJUDGED, f"this record has no mark {found!r} with a list of 'writes'")
    promised = {str(e.data["write"]): e for e in acks}
    look = looks[-1]
    there = {str(write) for write in look.data["writes"]}
    gone = {write: e for write, e in promised.items() if write not in there and e.t <= look.t}
    late = [write for write, e in promised.items() if e.t > look.t]
    if gone:
        evidence = tuple(Evidence(e.t, e.t, (e.lane,), f"write {write} is gone") for write, e in gone.items())
        text = f"{len(gone)} of {count(len(promised), 'acknowledged write')} gone: {few(gone)}"
        return Verdict(rule, VIOLATED, text, evidence)
    if late:
        return Verdict(rule, UNJUDGED, f"nobody looked after the acknowledgement of {few(late)}")
    return Verdict(rule, HOLDS, f"{count(len(promised), 'acknowledged write')}, all found")
