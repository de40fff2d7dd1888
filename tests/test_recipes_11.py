"""The recipes of chapter 11, from its own cells: trees asked everything, stock in a crowd and under faults, orders."""

import contextlib
import random
import sys
from collections import Counter

import cloudpickle
import psycopg
import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st
from papers import FOLDER

from labkit import Lab, LabError, recall
from labkit.league import season

recipes = recall("11-decisions")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

OURS = {"LOCK_OURS": recipes.LOCK_OURS, "FIT_OURS": recipes.FIT_OURS}
THEIRS = {name: getattr(recipes, name) for name in ("LOCK_ARTICLE", "FIT_ARTICLE", "LIMITER_ARTICLE")}
WHOLE = OURS | {name: THEIRS[name] for name in ("FIT_ARTICLE", "LIMITER_ARTICLE")}
ITEMS, BUYERS = 4, 10
# The planted faults: a branch that nobody reaches, two answers to one need, and none.
UNREACHED = ("How many?", "n", {"< 5": "few", ">= 5": ("How many?", "n", {"< 3": "never", ">= 3": "many"})})
TWICE = ("How many?", "n", {"<= 5": "few", ">= 5": "many"})
GAP = ("How many?", "n", {"< 5": "few", "> 5": "many"})


# -- trees
def unanswered(tree) -> list[dict]:
    return [need for need in recipes.needs(tree) if recipes.walk(tree, need)[1] is None]


def reached(tree) -> set:
    return {recipes.walk(tree, need)[1] for need in recipes.needs(tree)} - {None}


@pytest.mark.parametrize("tree", WHOLE.values(), ids=WHOLE)
def test_every_need_gets_one_answer(tree):
    assert len(recipes.needs(tree)) > 1 and unanswered(tree) == []


@pytest.mark.parametrize("tree", (OURS | THEIRS).values(), ids=OURS | THEIRS)
def test_no_branch_is_unreachable(tree):
    assert reached(tree) == set(recipes.advices(tree))


def test_the_properties_find_what_was_planted():
    assert reached(UNREACHED) == {"few", "many"} != set(recipes.advices(UNREACHED))
    assert [need["n"] for need in unanswered(TWICE)] == [5.0] == [need["n"] for need in unanswered(GAP)]


NEEDS = st.fixed_dictionaries(
    {
        "goal": st.sampled_from(["save work", "never twice"]),
        "grants_per_s": st.one_of(st.integers(0, 10**6), st.floats(0, 1e6, allow_nan=False)),
        "etcd": st.sampled_from(["yes", "no"]),
        "zookeeper": st.sampled_from(["yes", "no"]),
        "checks": st.sampled_from(["yes", "no"]),
    }
)


@given(NEEDS)
@example({"goal": "never twice", "grants_per_s": 5000, "etcd": "yes", "zookeeper": "no", "checks": "yes"})
@example({"goal": "save work", "grants_per_s": 5000, "etcd": "yes", "zookeeper": "no", "checks": "yes"})
def test_the_articles_tree_has_a_gap_at_5000_and_nowhere_else(need):
    way, advice = recipes.walk(recipes.LOCK_ARTICLE, need)
    in_the_gap = need["goal"] == "never twice" and need["grants_per_s"] == 5000
    assert (advice is None) == (way[-1] is None) == in_the_gap


@given(st.sampled_from(sorted(OURS)), st.randoms(use_true_random=False))
def test_what_would_change_the_answer_does_change_it(name, dice):
    tree = OURS[name]
    need = {datum: dice.choice(answers) for datum, answers in recipes.values(tree).items()}
    told = recipes.advise(tree, need)
    assert told["advice"] == recipes.walk(tree, need)[1] and told["leave when"]
    changed = {f"{d} = {v}": recipes.walk(tree, need | {d: v})[1] for d in need for v in recipes.values(tree)[d]}
    assert told["would change it"] == [f"{k}: {a}" for k, a in changed.items() if a != told["advice"]]


def test_no_advice_of_ours_is_contradicted_and_a_planted_one_is():
    _, rows, _ = season.recorded(FOLDER / "recorded" / "11-decisions.jsonl")
    assert recipes.contradicted(recipes.LOCK_OURS, rows) == {}
    assert recipes.contradicted(recipes.LOCK_ARTICLE, rows)["etcd"] > 0
    spoilt = [row | {"wrong: registered on reads": 1} for row in rows]
    (advice,) = recipes.contradicted(recipes.LOCK_OURS, spoilt)
    assert advice.startswith("A number from the target's")
    assert set(recipes.STANDS_ON) <= {a for tree in (OURS | THEIRS).values() for a in recipes.advices(tree)}


def test_evidence_says_what_was_measured_or_which_chapter_would(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    ids = {id for group in recipes.EVIDENCE.values() for id in group} | {
        id for row in recipes.QUICK_TABLE for id in row[5]
    }
    assert all("not measured on this machine" in recipes.measured(id) for id in ids)
    recipes.keep_rows("11-decisions", [{"lock": "x"}])
    recipes.claim("DECIDE-05", bool(ids), ours="nothing at 5000")
    assert recipes.measured("DECIDE-05") == "DECIDE-05 (11-decisions): nothing at 5000"


# -- stock
@pytest.fixture(scope="module")
def lab():
    with Lab("recipes-11") as lab:
        yield lab


@pytest.fixture(scope="module")
def servers(lab):
    store, db = lab.redis(), lab.postgres()
    with db.client() as sql:
        sql.execute("CREATE TABLE stock (n int)")
        sql.execute("INSERT INTO stock VALUES (0)")
        sql.execute("CREATE TABLE purchases (id text PRIMARY KEY)")
        sql.execute("CREATE TABLE orders (id int PRIMARY KEY, state text)")
        sql.execute("CREATE TABLE audit (order_id int, old text, new text, who text, n serial)")
        sql.execute("CREATE TABLE coupons (code text, used_by text)")
        sql.execute("CREATE TABLE tries (id text PRIMARY KEY, state text)")
    return store, db


@pytest.fixture
def fresh(servers):
    """A stock of ITEMS in both stores, and nothing else. Gives a client of each."""
    store, db = servers
    r, sql = store.client(), db.client(timeout_s=10)
    r.flushall()
    r.set("stock", ITEMS)
    for table in ("purchases", "orders", "audit", "coupons", "tries"):
        sql.execute(f"DELETE FROM {table}")
    sql.execute("UPDATE stock SET n = %s", [ITEMS])
    sql.execute("INSERT INTO coupons VALUES ('SPRING', NULL)")
    yield r, sql
    sql.close()


@pytest.mark.parametrize(
    ("way", "stop", "sold", "left"),
    [
        (recipes.blind, "ready", BUYERS, ITEMS - BUYERS),
        (recipes.looked_at, "ready", ITEMS, ITEMS - BUYERS),
        (recipes.by_script, "ready", ITEMS, 0),
        (recipes.get_then_set, "has seen", BUYERS, ITEMS - 1),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_five_ways_in_a_crowd(lab, servers, fresh, way, stop, sold, left):
    assert recipes.crowd(lab, servers[0], way, BUYERS, stop) == sold
    assert int(fresh[0].get("stock")) == left


def test_a_conditional_update_in_a_crowd(lab, servers, fresh):
    assert recipes.crowd(lab, servers[1], recipes.by_update, BUYERS) == ITEMS
    assert fresh[1].execute("SELECT n FROM stock").fetchone() == (0,)


def left_and_orders(sql) -> tuple[int, int]:
    return sql.execute("SELECT n, (SELECT count(*) FROM purchases) FROM stock").fetchone()


@pytest.mark.parametrize("seed", range(6))
def test_a_purchase_with_a_name_takes_one_whatever_strikes_it(lab, servers, fresh, seed):
    """Several call for each order, some are killed, some lose their answers and insist: the sum is always right."""
    dice, (_, db), (_, sql) = random.Random(seed), servers, fresh
    with lab.run(f"purchases, plan {seed}"):
        callers = [
            (order, lab.worker(f"{order}-{i}", recipes.insist, db, recipes.purchase, order).run_to("ready"))
            for order in ("a", "b", "c", "d", "e", "f")
            for i in range(2)
        ]
        struck = dict(zip(dice.sample(range(len(callers)), 4), ("kill", "kill", "replies", "replies"), strict=True))
        for i, (_, worker) in enumerate(callers):
            if struck.get(i) == "replies":
                lab.cut(worker, db, how="replies")
                worker.run_to("timed out", 30)
                lab.heal(worker, db)
            worker.start()
            if struck.get(i) == "kill":
                with contextlib.suppress(LabError):  # it was quicker
                    lab.kill(worker)
        told = Counter(order for order, worker in callers if worker.state != "killed" and worker.join()[0])
    left, orders = left_and_orders(sql)
    assert orders == ITEMS - left == ITEMS  # six wanted one, and there were four
    there = {id for (id,) in sql.execute("SELECT id FROM purchases").fetchall()}
    assert set(told) <= there


def test_without_a_name_a_retry_takes_a_second_one(lab, servers, fresh):
    for node, way, left in (
        (servers[0], recipes.by_script, lambda: int(fresh[0].get("stock"))),
        (servers[1], recipes.by_update, lambda: left_and_orders(fresh[1])[0]),
    ):
        with lab.run("the answer is lost"):
            a = lab.worker("A", recipes.insist, node, way).run_to("ready")
            lab.cut(a, node, how="replies")
            a.run_to("timed out")
            lab.heal(a, node)
            assert a.join() == (True, 2) and left() == ITEMS - 2


# -- orders
def unconditional(db, order, old, new, who, step=lambda what: None):
    """The planted fault: it looks, and writes afterwards."""
    (state,) = db.execute("SELECT state FROM orders WHERE id = %s", [order]).fetchone()
    step("before the commit")
    if state == old:
        db.execute("UPDATE orders SET state = %s WHERE id = %s", [new, order])
        db.execute("INSERT INTO audit VALUES (%s, %s, %s, %s)", [order, old, new, who])
    return state == old


def moves(w, db, order, machine, steps):
    client = w.client(db, timeout_s=20)
    w.mark("ready")
    return [step for step in steps if machine(client, order, *step, w.name, w.mark)]


def broken_chains(sql) -> list[int]:
    """Orders whose audit does not lead, line after line, from pending to the state that they are in."""
    found = []
    for order, state in sql.execute("SELECT id, state FROM orders").fetchall():
        lines = sql.execute("SELECT old, new FROM audit WHERE order_id = %s ORDER BY n", [order]).fetchall()
        at = "pending"
        for old, new in lines:
            at = new if at == old else "?"
        found += [order] if at != state else []
    return found


PAY, CANCEL, SHIP = ("pending", "paid"), ("pending", "cancelled"), ("paid", "shipped")


def test_an_order_moves_once_whoever_dies_on_the_way(lab, servers, fresh):
    _, db = servers
    sql, dice = fresh[1], random.Random(7)
    sql.execute("INSERT INTO orders SELECT n, 'pending' FROM generate_series(1, 8) n")
    with lab.run("orders"):
        crew = []
        for order in range(1, 9):
            for i, steps in enumerate(([PAY, SHIP], [CANCEL], [PAY])):
                crew.append(lab.worker(f"{order}-{i}", moves, db, order, recipes.advance, steps).run_to("ready"))
        victims = dice.sample(crew, 4)
        for worker in victims:
            worker.run_to("before the commit")
            lab.kill(worker)
        for worker in crew:
            worker.start()
        for worker in crew:
            if worker not in victims:
                worker.join()
    assert broken_chains(sql) == []
    states = Counter(state for (state,) in sql.execute("SELECT state FROM orders").fetchall())
    assert set(states) <= {"paid", "shipped", "cancelled"} and sum(states.values()) == 8


def test_the_check_on_orders_sees_the_planted_fault(lab, servers, fresh):
    fresh[1].execute("INSERT INTO orders VALUES (1, 'pending')")
    with lab.run("look, then write"):
        a, b = (lab.worker(n, moves, servers[1], 1, unconditional, [s]) for n, s in (("A", PAY), ("B", CANCEL)))
        a.run_to("before the commit"), b.run_to("before the commit")
        assert a.join() == [PAY] and b.join() == [CANCEL]
    assert broken_chains(fresh[1]) == [1]


def test_a_death_of_the_database_leaves_both_or_none(lab, servers, fresh):
    _, db = servers
    fresh[1].execute("INSERT INTO orders VALUES (1, 'pending'), (2, 'pending')")
    with lab.run("the database dies"):
        done = lab.worker("done", moves, db, 1, recipes.advance, [PAY]).join()
        lab.worker("half", moves, db, 2, recipes.advance, [PAY]).run_to("before the commit")
        lab.restart(db, data="kept")
    with db.client(timeout_s=10) as sql:
        states = dict(sql.execute("SELECT id, state FROM orders").fetchall())
        assert done == [PAY] and states == {1: "paid", 2: "pending"} and broken_chains(sql) == []


def test_no_order_goes_where_none_may_go(fresh):
    fresh[1].execute("INSERT INTO orders VALUES (1, 'shipped')")
    with pytest.raises(ValueError, match="no order goes from shipped to paid"):
        recipes.advance(fresh[1], 1, "shipped", "paid", "A")
    assert not recipes.advance(fresh[1], 1, *PAY, "A")


# -- two services
def halves(r, sql) -> tuple[int, int]:
    """(items gone, coupons used)."""
    return ITEMS - int(r.get("stock")), sql.execute(
        "SELECT count(*) FROM coupons WHERE used_by IS NOT NULL"
    ).fetchone()[0]


def test_a_try_that_comes_through_is_confirmed_once(lab, servers, fresh):
    with lab.run("no fault"):
        assert lab.worker("A", recipes.try_and_confirm, *servers, "order 1").join()
        assert not lab.worker("B", recipes.try_and_confirm, *servers, "order 1").join()  # said again: nothing more
    recipes.sweep(*fresh)
    assert halves(*fresh) == (1, 1)


def test_a_try_that_finds_nothing_left_keeps_nothing(lab, servers, fresh):
    r, sql = fresh
    r.set("stock", 0)
    with lab.run("sold out"):
        assert not lab.worker("A", recipes.try_and_confirm, *servers, "order 1").join()
    recipes.sweep(r, sql)
    assert halves(r, sql) == (ITEMS, 0) and sql.execute(
        "SELECT count(*) FROM tries WHERE state = 'confirmed'"
    ).fetchone() == (0,)


@pytest.mark.parametrize("late", [False, True], ids=["dies", "comes late"])
def test_what_was_begun_and_not_confirmed_is_taken_back(lab, servers, fresh, late):
    with lab.run("a half order"):
        a = lab.worker("A", recipes.try_and_confirm, *servers, "order 1").run_to("has the item")
        assert halves(*fresh) == (1, 0)
        if late:
            recipes.sweep(*fresh)
            assert not a.join()  # the sweeper was first
        else:
            lab.kill(a)
    for _ in range(2):
        recipes.sweep(*fresh)
        assert halves(*fresh) == (0, 0)


# -- the rest
def test_damage_is_a_product():
    assert recipes.damage_a_year(24, 0.5, 200) == 2400 and recipes.damage_a_year(24, 0.5, 200, 1.0) == 0


def test_the_check_up_keeps_every_answer_and_counts_the_open_ones():
    text = recipes.checkup_text(
        dict.fromkeys(recipes.CHECKUP, "") | {"Who is told when it was lost?": "the night shift"}
    )
    assert (
        text.startswith("# Health check")
        and "the night shift" in text
        and text.count("(open)") == len(recipes.CHECKUP) - 1
    )
    assert f"Open: {len(recipes.CHECKUP) - 1} of {len(recipes.CHECKUP)}" in text


def test_the_clients_of_the_recipes_are_those_of_the_course():
    assert recipes.psycopg is psycopg and recipes.redis is redis
