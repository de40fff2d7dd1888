"""What a resource was told, and whether it should have taken it. Reads the marks of `w.has_read` and `w.wrote`."""

from itertools import pairwise

from ..errors import LabError
from ..record import Event, Timeline
from .verdict import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict, count


def history(timeline: Timeline, resource: str, reads: bool = False) -> list[Event]:
    """The writes (and reads) that a resource took, in its own order: by its `seq` if each told one, else by time.

    A read may carry the seq of the write whose value it saw: it comes after that write.
    """
    ops = ("read", "write") if reads else ("write",)
    taken = [e for e in timeline.marks(lane=resource) if e.data.get("op") in ops and e.data.get("ok", True)]
    if all("seq" in e.data for e in taken):
        taken.sort(key=lambda e: (e.data["seq"], e.data["op"] == "read", e.t))
    return taken


def token_order(timeline: Timeline, resource: str, reads: bool = False) -> Verdict:
    """The operations a resource accepted carry tokens that never go down, and no token comes from two workers.

    (Fencing tokens, Kleppmann 2016.) Needs marks made with `w.wrote(resource, value, token=...)`, and with
    `reads=True` also `w.has_read(resource, value, token=...)`: a writer that reads first is outdated from the moment
    the resource answered a newer one's read, which a look at the writes alone does not show.
    Evidence: each accepted operation that comes too late. Raises LabError for a token that is no number.
    """
    rule, what = ("token order, reads included", "operation") if reads else ("token order", "write")
    taken = [e for e in history(timeline, resource, reads) if e.data.get("token") is not None]
    if not taken:
        return Verdict(rule, UNJUDGED, f"no {what} with a token was accepted at {resource!r}")
    late, newest = [], taken[0]
    for e in taken:
        token, top = _number(e), _number(newest)
        if token < top or (token == top and _by(e) != _by(newest)):
            late.append((e, newest))
        else:
            newest = e
    if not late:
        return Verdict(rule, HOLDS, f"{count(len(taken), what)} at {resource!r}, the tokens never went down")
    e, before = late[0]
    text = (
        f"{resource!r} took {_by(e)}'s {e.data['op']} with token {e.data['token']} "
        f"after {_by(before)}'s {before.data['op']} with {before.data['token']}"
    )
    if len(late) > 1:
        text += f", the first of {len(late)} such"
    found = (Evidence(e.t, e.t, (resource,), f"{_told(e)} after {_told(b)}") for e, b in late)
    return Verdict(rule, VIOLATED, text, tuple(found))


def no_lost_update(timeline: Timeline, resource: str) -> Verdict:
    """Every accepted write is based on the value that it replaces: each would have passed a compare-and-set.

    What a worker's write is based on is the value it last read or wrote there itself (values are compared as text, as
    a server may say '100' for 100); a worker that never read writes blindly, and its writes are not judged. Without
    `seq` the order is that of the marks, and a mark comes a little after its write: let the resource number its
    writes, or lead the workers one after the other.
    Evidence: from the outdated read to the write that was accepted all the same.
    """
    rule = "no lost update"
    writes = history(timeline, resource)
    replaced = {id(write): before for before, write in pairwise(writes)}
    judged, lost, last_seen = 0, [], {}
    for e in timeline.marks(lane=resource):  # a worker's own marks stand in the order of its program
        if e.data.get("op") not in ("read", "write") or not e.data.get("ok", True):
            continue
        base, before = last_seen.get(_by(e)), replaced.get(id(e))
        if e.data["op"] == "read" or base is not None:
            last_seen[_by(e)] = e
        if e.data["op"] == "write" and base is not None:
            judged += 1
            if before is not None and _value(before) != _value(base):
                lost.append((base, before, e))
    if not judged:
        return Verdict(rule, UNJUDGED, f"no worker wrote to {resource!r} after it had read there")
    if not lost:
        return Verdict(rule, HOLDS, f"{count(judged, 'write')} at {resource!r}, each based on the value it replaced")
    base, before, e = lost[0]
    text = f"{_by(e)} wrote {_value(e)} for {_value(base)}, but {_by(before)} had made {resource!r} {_value(before)}"
    if len(lost) > 1:
        text += f", the first of {len(lost)} such"
    found = (Evidence(a.t, e.t, (resource,), f"{_by(before)}'s {_value(before)} is lost") for a, before, e in lost)
    return Verdict(rule, VIOLATED, text, tuple(found))


def _by(e: Event) -> str:
    return e.data.get("by", "?")


def _value(e: Event) -> str:
    return str(e.data.get("value"))


def _told(e: Event) -> str:
    return f"{_by(e)}'s token {e.data['token']}"


def _number(e: Event) -> int:
    try:
        return int(str(e.data["token"]))  # a client may hand a number over as text, and as text '10' is before '9'
    except ValueError:
        raise LabError(
            f"The token {e.data['token']!r} of {_by(e)} cannot be put in order.",
            "A fencing token is a whole number that grows with each acquisition; a lock's random value is none.",
            "Pass the number that came with the lock: w.wrote(resource, value, token=number)",
        ) from None
