"""A kernel that is killed with SIGKILL while every server this machine has is running, some of them frozen or cut."""

import pytest
from crash import processes_left

from labkit import Unsupported, servers

CELL = """
store = lab.redis()
nodes = lab.redis(replicas=1, sentinels=3)
members = lab.redis(cluster=6)
lab.pause(nodes[0])
"""
# what each of the rarer servers adds, frozen or cut where that is hardest to take along
MORE = {
    "postgres": "db = lab.postgres(); talk = db.client(); lab.pause(db)",
    "etcd": "e = lab.etcd(3, peer_links=True); lab.cut_peers(e[0])",
    "zookeeper": "z = lab.zookeeper(3, peer_links=True); lab.pause(z[0])",
    "nginx": "web = lab.nginx()",
    "rabbitmq": "mq = lab.rabbitmq(); lab.pause(mq)",
    "kafka": "log = lab.kafka()",
}
TRIALS = 20


def is_here(kind: str) -> bool:
    try:
        return bool(servers.of(kind).where())
    except Unsupported:
        return False


@pytest.mark.long
def test_nothing_is_left_of_a_lab_with_everything_in_it():
    here = [line for kind, line in MORE.items() if is_here(kind)]
    left = [processes_left("\n".join([CELL, *here])) for _ in range(TRIALS)]
    assert all(len(before) > 20 for before, _ in left)
    assert [after for _, after in left] == [[]] * TRIALS
