"""The panel without a browser: what it shows, when it looks, and that a press from code is the button's own."""

import sys
import threading
import time
from types import SimpleNamespace

import cloudpickle
import pytest
from bs4 import BeautifulSoup
from kernels import eventually

from labkit import Lab, LabError, Panel, WorkerError, panel
from labkit.node import Node

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def lab():
    with Lab("panel") as lab:
        lab.redis()
        yield lab


@pytest.fixture
def shown(lab):
    view = Panel(lab)
    yield view
    view.close()


def forever(w, store):
    r = w.client(store)
    while True:
        r.incr("n")
        w.mark("beat")
        w.work(0.01)


def steps(w):
    w.mark("one")
    w.mark("two")


def text(widget) -> str:
    return " ".join(BeautifulSoup(widget.value, "html.parser").get_text(" ").split())


def label(view, name) -> str:
    return text(view._rows[name].label)


def button(view, words):
    return next(row.buttons[words] for row in view._rows.values() if words in row.buttons)


# -- states
def test_each_state_in_words_a_sign_and_a_colour(lab, shown):
    with lab.run("states"):
        a = lab.worker("A", steps)
        shown.refresh()
        assert label(shown, "A") == "A ○ not started"
        a.run_to("one")
        shown.refresh()
        assert label(shown, "A") == "A ◆ held at 'one'"
        shown.press("freeze A")
        assert label(shown, "A") == "A ❚❚ frozen at 'one'"
        assert panel._LOOKS["frozen"][1] in shown._rows["A"].label.value
        shown.press("wake A")
        a.join()
        shown.refresh()
        assert label(shown, "A") == "A ✓ done"
        lab.worker("B", steps)
        shown.press("kill B")
        assert label(shown, "B") == "B ✕ killed"
    shown.press("kill redis-1")
    assert label(shown, "redis-1") == "redis-1 ✕ dead"
    shown.press("restart redis-1, data kept")
    assert label(shown, "redis-1") == "redis-1 ● running"


def test_signs_and_colours_tell_all_states_apart():
    signs = [sign for sign, _ in panel._LOOKS.values()]
    assert len(set(signs)) == len(signs)
    assert len({panel._LOOKS[state][1] for state in ("running", "frozen", "held", "dead")}) == 4


def test_names_are_no_markup(lab, shown):
    with lab.run("<b>bold</b>"):
        lab.worker("<i>A", steps)
        shown.refresh()
        assert label(shown, "<i>A") == "<i>A ○ not started"


# -- rows
def test_rows_come_and_go_with_the_workers(lab, shown):
    assert list(shown._rows) == ["redis-1"]
    with lab.run("one"):
        lab.worker("A", steps)
        lab.watch(lab.nodes[0], "n")
        eventually(lambda: list(shown._rows) == ["A", "redis-1"], "the thread has seen A, and no observer", 20)
        before = shown._rows["redis-1"]
        lab.worker("B", steps)
        shown.refresh()
        assert list(shown._rows) == ["A", "B", "redis-1"]
        assert shown._rows["redis-1"] is before  # a row that stays is the same widget: nothing flickers
    eventually(lambda: list(shown._rows) == ["redis-1"], "the workers are gone", 20)
    eventually(lambda: "The run is over" in text(shown._events), "and it says so", 20)
    lab.redis()
    eventually(lambda: list(shown._rows) == ["redis-1", "redis-2"], "another node has come", 20)


def test_the_rarer_buttons_stand_behind_more(lab, shown):
    with lab.run("more"):
        lab.worker("A", steps)
        shown.refresh()
        row = shown._rows["A"]
        line, drawer = row.box.children
        assert row.buttons["freeze A"] in line.children[1].children
        assert row.buttons["cut A from redis-1"] in drawer.children
        layout = row.box.children[1].layout
        assert layout.display == "none"
        row.more.value = True
        assert layout.display == "grid"


def test_a_button_says_all_in_its_tip_and_the_rest_on_its_face(lab, shown):
    with lab.run("words"):
        lab.worker("A", steps)
        shown.refresh()
        faces = {b.tooltip: b.description for b in shown._rows["A"].buttons.values()}
        assert faces["freeze A"] == "freeze"
        assert faces["cut A from redis-1"] == "cut from redis-1"
        assert faces["lose answers to A from redis-1"] == "lose answers from redis-1"


# -- pressing
def test_every_button_has_a_twin_in_code_that_does_the_same(lab, shown):
    with lab.run("twins") as e:
        lab.worker("A", forever, lab.nodes[0]).start()
        for words, fault in (("freeze A", "frozen"), ("cut A from redis-1", "cut from redis-1")):
            back = {"freeze A": "wake A"}.get(words, "heal A to redis-1")
            shown.press(words)
            shown.press(back)
            button(shown, words).click()
            button(shown, back).click()
            assert [span.how for span in e.timeline.spans(fault, lane="A")] == ["ended", "ended"]


def test_the_synonyms(lab, shown):
    with lab.run("synonyms"):
        a = lab.worker("A", steps)
        shown.press("pause A")
        assert a.frozen
        shown.press("resume A")
        assert not a.frozen


def test_an_error_is_a_message_for_a_click_and_raised_by_press(lab, shown):
    with pytest.raises(LabError, match="no button 'freeze Z'"):
        shown.press("freeze Z")
    shown._click("wake redis-1")
    assert "redis-1 is not frozen." in text(shown._message) and "role='alert'" in shown._message.value
    shown.press("freeze redis-1")
    assert shown._message.value == ""
    shown.press("wake redis-1")


def test_it_works_while_a_cell_waits(lab, shown):
    """The press comes from another thread, as a click does; the cell's own thread is inside join()."""
    errors = []

    def presses():
        try:
            shown.press("freeze A")
            shown.press("wake A")
            shown.press("kill A")
        except Exception as error:
            errors.append(error)

    with lab.run("a cell waits") as e:
        a = lab.worker("A", forever, lab.nodes[0]).run_to("beat")
        thread = threading.Thread(target=presses)
        thread.start()
        with pytest.raises(WorkerError, match="A was killed"):
            a.join(timeout_s=60)
        thread.join(60)
        assert not errors and [span.name for span in e.timeline.spans(lane="A")] == ["frozen"]


def test_a_click_goes_to_the_thread_that_the_page_chose(lab, shown):
    """Not to the one that last wrote to the button, which may be waiting: see panel._hear_while_busy."""
    for widget in (shown._rows["redis-1"].more, button(shown, "freeze redis-1")):
        assert widget.comm._reply_subshell_for({}, "chosen") == "chosen"


# -- looking
def changes(view) -> list:
    """Every value that is sent to the page from now on, as (trait, new value)."""
    seen = []
    for widget in [view._message, view._events, view._picture, view._table, *_widgets(view._table)]:
        widget.observe(lambda change: seen.append((change["name"], change["new"])))
    return seen


def _widgets(box):
    for child in box.children:
        yield child
        yield from _widgets(child) if hasattr(child, "children") else ()


def test_nothing_is_sent_while_nothing_changes(lab, shown):
    with lab.run("still"):
        lab.worker("A", steps).run_to("one")
        shown.refresh()
        seen = changes(shown)
        for _ in range(3):
            shown.refresh()
        assert seen == []
        shown.press("freeze A")
        assert seen


def test_no_server_is_asked_twice_within_two_seconds_while_nothing_changes(lab, shown, monkeypatch):
    now, asked = [time.monotonic()], []
    shown.close()  # only this test looks
    monkeypatch.setattr(panel, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Node, "role", property(lambda node: asked.append(node.name) or "single"))
    now[0] += 10
    shown.refresh()
    assert asked == ["redis-1"]
    del asked[:]
    for _ in range(10):
        now[0] += 0.19
        shown.refresh()
    assert asked == []
    now[0] += 0.19
    shown.refresh()
    assert asked == ["redis-1"]
    shown.press("freeze redis-1")  # a change: to find the button, and to show what came of it
    assert asked == ["redis-1"] * 3
    shown.press("wake redis-1")


def test_the_picture_grows_with_the_run(lab, shown):
    with lab.run("it grows"):
        a = lab.worker("A", forever, lab.nodes[0]).run_to("beat")
        shown.refresh()
        first = shown._picture.value
        assert "it grows" in first and "role=" in first
        a.start()
        eventually(lambda: shown._picture.value != first, "the thread has drawn it again", 20)
    assert "beat" in text(shown._events)


def test_without_a_picture(lab):
    view = Panel(lab, picture=False)
    with lab.run("no picture"):
        lab.worker("A", steps)
        view.refresh()
        assert view._picture.value == "" and view._picture not in view.box.children
    view.close()


def test_two_panels_on_one_lab(lab, shown):
    other = Panel(lab)
    shown.press("freeze redis-1")
    eventually(lambda: label(other, "redis-1") == "redis-1 ❚❚ frozen", "the other panel sees it too", 20)
    other.press("wake redis-1")
    eventually(lambda: label(shown, "redis-1") == "redis-1 ● running", "and the other way round", 20)
    other.close()


# -- the end
def test_close_ends_its_thread_and_leaves_what_is_seen(lab, shown):
    thread = shown._thread
    assert thread.is_alive()
    shown.close()
    assert not thread.is_alive() and label(shown, "redis-1") == "redis-1 ● running"
    shown.close()
    shown.press("freeze redis-1")  # it can still be pressed
    assert label(shown, "redis-1") == "redis-1 ❚❚ frozen"


def test_a_closed_lab_is_a_plain_sentence(lab, shown):
    lab.close()
    eventually(lambda: not shown._thread.is_alive(), "it has stopped looking by itself", 20)
    assert text(shown._message).startswith("The laboratory panel is closed: its servers and workers are gone.")
    assert shown._table.children == () and shown._events.value == ""
    with pytest.raises(LabError, match="the laboratory is closed"):
        shown.press("freeze redis-1")
    again = Panel(lab)
    assert "is closed" in text(again._message)
    eventually(lambda: not again._thread.is_alive(), "there is nothing to look at", 20)
