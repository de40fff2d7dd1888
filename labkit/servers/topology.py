"""Which Redis servers can stand together."""

from ..errors import LabError


def check(n: int, replicas: int, sentinels: int, cluster: int, down_after_ms: float) -> None:
    """Raises LabError for what cannot be, or would teach something wrong."""
    if n < 1 or min(replicas, sentinels, cluster) < 0:
        raise _impossible("A number of nodes is too small.", "There is at least one node, and no number is negative.")
    if n > 1 and (replicas or sentinels or cluster):
        raise _impossible(
            f"{n} independent nodes cannot have replicas, Sentinels or a Cluster.",
            "n counts servers that know nothing of each other; the other numbers are about servers that do.",
        )
    if cluster and (replicas or sentinels):
        raise _impossible(
            "A Cluster takes neither replicas nor Sentinels.",
            "It has its own replicas, and its members watch each other.",
        )
    if cluster and cluster != 3 and (cluster < 6 or cluster % 2):
        raise _impossible(
            f"A Cluster cannot be made of {cluster} nodes here.",
            "It takes three primaries to agree that one has failed; here all have one replica, or (of 3 nodes) none.",
        )
    if sentinels and not replicas:
        raise _impossible(
            "Sentinels have nothing to do without a replica.", "They promote one when the primary is down."
        )
    if down_after_ms < 1:
        raise _impossible(
            f"A Sentinel cannot hold a primary for down after {down_after_ms:g} ms.",
            "It is asked once a second or less.",
        )


def _impossible(what: str, why: str) -> LabError:
    kinds = "lab.redis(5), lab.redis(replicas=1), lab.redis(replicas=2, sentinels=3) or lab.redis(cluster=6)"
    return LabError(what, why, f"Write for example {kinds}.")
