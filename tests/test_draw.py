"""Pictures: what they say, what they show, and that they stand on any page."""

import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from itertools import combinations

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.text import Text
from matplotlib.transforms import Affine2D

from labkit import check, draw
from labkit.draw.place import GAP, overflow, place
from labkit.errors import LabError
from labkit.record import Event, Timeline


class Run:
    """A record written by hand."""

    def __init__(self, title, *workers):
        self.title, self.spans = title, 0
        self.pids = {worker: pid for pid, worker in enumerate(workers, 10)}
        self.events = [Event(0.0, "lab", "note", w, {"what": "worker", "pid": pid}) for w, pid in self.pids.items()]

    def span(self, lane, name, start, end=None, ending=None, **data):
        self.spans += 1
        pid = self.pids.get(lane, 1)
        self.events.append(Event(start, lane, "begin", name, {**data, "span": self.spans}, pid))
        if end is not None:
            self.events.append(Event(end, lane, "end", "", {"span": self.spans, **(ending or {})}, pid))

    def mark(self, lane, name, t, **data):
        self.events.append(Event(t, lane, "mark", name, data, self.pids.get(lane, 1)))

    def exit(self, worker, t):
        self.events.append(Event(t, "lab", "note", "exit", {"pid": self.pids[worker]}, 1))

    @property
    def timeline(self):
        return Timeline(tuple(sorted(self.events, key=lambda e: e.t)), self.title)


def freeze():
    run = Run("A sleeps through its lease", "A", "B")
    run.span("A", "holds", 0.1, 1.4, lock="lock", token="3f6c9ab0")
    run.span("A", "frozen", 0.3, 1.2, fault=True)
    run.span("B", "holds", 0.9, 1.6, lock="lock", token="77aa4bd2")
    run.span("lock (redis-1 says)", "owner", 0.1, 0.85, owner="3f6c9ab0", says="redis-1")
    run.span("lock (redis-1 says)", "owner", 0.9, 1.7, owner="77aa4bd2", says="redis-1")
    run.mark("A", "checked", 0.29)
    run.mark("balance", "90", 1.0, by="B", op="write", value=90, ok=True, token=34)
    run.mark("balance", "80", 1.3, by="A", op="write", value=80, ok=False, token=33)
    run.mark("balance", "100", 0.2, by="A", op="read", value=100, ok=True)
    return run.timeline


def crowd():
    run = Run(
        "Many marks close to each other & <names> that are far too long",
        *(f"a-worker-with-a-long-name-{i}" for i in range(3)),
    )
    for k in range(40):
        worker = f"a-worker-with-a-long-name-{k % 3}"
        run.span(worker, "holds", k * 0.1, k * 0.1 + (0.02, 0.09, 0.12)[k % 3], lock="l", token=k)
        run.mark(worker, ("checked the balance of the account", "wrote", "read")[k % 7 % 3], k * 0.1 + 0.01 * (k % 5))
        run.mark("balance", "1", k * 0.1 + 0.05, by=worker, op="write", value="a long value", ok=k % 5 > 0, token=k)
        run.span(worker, "cut from redis-1", k * 0.1, k * 0.1 + 0.08, fault=True)
    run.span("redis-1", "dead", 3.0, None, fault=True)
    return run.timeline


def many(n=3300):
    run = Run("Ten thousand events", "A", "B", "C")
    for k in range(n):
        worker, t = "ABC"[k % 3], k * 0.001
        run.span(worker, "holds", t, t + 0.0012, lock="l")
        run.mark(worker, "did", t + 0.0004)
        run.mark("balance", "x", t + 0.0005, by=worker, op="write", value=k, ok=k % 50 > 0)
    return run.timeline


def messages():
    run = Run("m1 dies with its worker and comes back", "A", "B")
    run.span("A", "works", 0.0, 0.1, message="m0")
    run.span("A", "works", 0.1, None, message="m1")
    run.mark("A", "killed", 0.15, fault=True)
    run.exit("A", 0.15)
    run.mark("B", "reclaimed", 0.4, message="m1")
    run.span("B", "works", 0.41, 0.5, message="m1")
    return run.timeline


def limiter():
    run = Run("A burst across the border", "A", "B")
    for k in range(60):
        run.mark("AB"[k % 2], "admitted" if k % 3 else "refused", 0.9 + k * 0.004)
    return run.timeline


def queue():
    run = Run("A slow consumer", "P", "C")
    for k in range(50):
        run.mark("P", "sent", k * 0.01)
        run.mark("C", "done", 0.1 + k * 0.02)
    return run.timeline


def judged(timeline):
    return check.mutual_exclusion(timeline)


def odd():
    run = Run("averylongtitle" * 20, "A")
    run.span("A", "holds", 0.99, 1.0, lock="l")
    for i in range(20):
        run.span(f"server-{i}", "dead", 1e-5, None, fault=True)
    for i in range(250):
        run.mark("A", f"a mark whose name is long, {i % 9}", i * 0.004)
    evidence = (check.Evidence(0.99, 1.0, ("A",), "a label of evidence that says very much at the very end " * 4),)
    return draw.timeline(run.timeline, check.Verdict("rule", check.VIOLATED, "x" * 300, evidence), width_in=6)


EVERY = {
    "odd": odd,
    "timeline": lambda: draw.timeline(freeze(), judged(freeze())),
    "order": lambda: draw.timeline(freeze(), judged(freeze()), axis="order"),
    "crowd": lambda: draw.timeline(crowd(), judged(crowd())),
    "narrow": lambda: draw.timeline(crowd(), judged(crowd()), width_in=5.5),
    "lives": lambda: draw.lives(messages()),
    "band": lambda: draw.band(limiter(), limit=20, window_s=1.0),
    "band each": lambda: draw.band(limiter(), limit=15, window_s=1.0, each=True, lanes=["B", "A"]),
    "backlog": lambda: draw.backlog(queue()),
    "strip": lambda: draw.strip({"near": [0.001 * k for k in range(1, 90)], "far": [0.08] * 3, "none": []}),
    "pairs": lambda: draw.pairs([("locks a second", 1978, (2400, 2600)), ("not run", 0.5, None)], unit="a second"),
    "curves": lambda: draw.curves({"ours": [(1, 5), (10, 50)], "theirs": [(1, 5.1), (10, 49)]}, x="n", y="bytes"),
    "empty": lambda: draw.timeline(Timeline(title="Nothing yet")),
}


@pytest.fixture(params=EVERY)
def picture(request):
    return EVERY[request.param]()


# -- what they say


def test_the_alt_text_states_the_verdict():
    picture = draw.timeline(freeze(), judged(freeze()))
    assert picture.alt.startswith("A sleeps through its lease. mutual exclusion VIOLATED: A and B both held 'lock'")
    root = ET.fromstring(picture.svg())
    assert root.get("role") == "img" and root.get("aria-label") == picture.alt
    assert root.find("{*}title").text == "A sleeps through its lease"


def test_the_text_has_a_line_for_each_span_mark_fault_and_evidence():
    text = draw.timeline(freeze(), judged(freeze())).text
    for line in (
        r"0\.1000 +1\.4000  A: holds \(lock=lock, token=3f6c9ab0\)",
        r"0\.3000 +1\.2000  A: FAULT frozen",
        r"0\.2900 +A: checked",
        r"lock \(redis-1 says\): owner 77aa4bd2 \(B\)",
        r"balance: B: 90 \(token 34\)$",
        r"balance: A: 80 \(token 33\) refused$",
        r"balance: A reads 100$",
        r"0\.9000 +1\.4000  EVIDENCE A, B: two holders for 0\.50 s",
    ):
        assert re.search(line, text, re.MULTILINE), line
    assert text.splitlines()[1] == repr(judged(freeze()))


def test_a_short_run_is_told_in_milliseconds():
    run = Run("Short", "A")
    run.mark("A", "x", 0.0123)
    assert "12.300" in draw.timeline(run.timeline).text and "to ms" in draw.timeline(run.timeline).text


def test_a_death_and_an_open_end_are_told_and_drawn_apart():
    def drawn(how):
        run = Run("One span", "A")
        run.span("A", "holds", 0.2, 0.8 if how == "ended" else None, lock="l")
        run.mark("A", "x", 1.0)
        if how == "died":
            run.exit("A", 0.8)
        return draw.timeline(run.timeline)

    ended, died, still = map(drawn, ("ended", "died", "open"))
    assert "ended by the death of its process" in died.text
    assert "still going on" in still.text
    assert len({bar_corners(p) for p in (ended, died, still)}) == 3


def bar_corners(picture):
    """How many corners the bar "holds" has: straight, torn or pointed."""
    d = re.search(r"<title>holds[^<]*</title><path d=\"([^\"]*)\"", picture.svg()).group(1)
    return len(re.findall("[ML]", d))


def test_an_unknown_outcome_and_a_failure_are_told():
    run = Run("Doubt", "A")
    run.span("A", "SET", 0.1, 0.2, {"outcome": "unknown", "error": "TimeoutError"})
    run.span("A", "GET", 0.3, 0.4, {"outcome": "fail", "error": "ValueError"})
    text = draw.timeline(run.timeline).text
    assert "A: SET, outcome unknown (TimeoutError)" in text and "A: GET, failed (ValueError)" in text


def test_zero_events_give_a_small_picture_that_says_so():
    picture = EVERY["empty"]()
    assert "No events yet" in picture.alt and "No events yet" in picture.text and "No events yet" in picture.svg()
    assert picture.figure.get_figheight() < 2


def test_other_pictures_state_their_numbers():
    assert "At most 40 admitted within 1 s" in EVERY["band"]().alt
    assert "Admitted within 1 s, at most: B 20, A 20; limit 15" in EVERY["band each"]().alt
    assert "23 wait at the end" not in EVERY["backlog"]().alt and "0 wait at the end" in EVERY["backlog"]().alt
    assert "near: 89 values, median 45 ms, all within 89 ms" in EVERY["strip"]().alt
    assert "locks a second: the article 1978 a second, ours 2400 to 2600 a second" in EVERY["pairs"]().alt
    assert "not run: the article 0.5 a second, ours none" in EVERY["pairs"]().text
    assert "ours goes from 5 to 50" in EVERY["curves"]().alt
    assert "m1: A works (message=m1), ended by the death of its process" in EVERY["lives"]().text


# -- what they show


def titles(picture):
    return [title.text for title in ET.fromstring(picture.svg()).iter("{http://www.w3.org/2000/svg}title")]


def texts(picture):
    return [text.text for text in ET.fromstring(picture.svg()).iter("{http://www.w3.org/2000/svg}text")]


def test_a_freeze_is_hatched_named_and_pale():
    picture = draw.timeline(freeze())
    assert "frozen" in texts(picture)
    slanted = re.findall(
        r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", max(re.findall(r'd="(M[^"]*)"', picture.svg()), key=len)
    )
    assert len(slanted) > 20
    assert all(abs((float(c) - float(a)) + (float(d) - float(b))) < 0.05 for a, b, c, d in slanted)  # 45 degrees
    awake = Run("The same, awake", "A", "B")
    awake.events = [e for e in freeze().events if e.name != "frozen"]
    assert picture.svg().count("opacity:0.34") > draw.timeline(awake.timeline).svg().count("opacity:0.34")


def test_lanes_stand_in_the_order_of_the_grammar():
    run = Run("Order", "A", "B")
    run.span("redis-2", "dead", 0.1, 0.5, fault=True)
    run.mark("balance", "1", 0.2, by="B", op="write", value=1, ok=True)
    run.span("lock (redis-1 says)", "owner", 0.1, 0.2, owner="x", says="redis-1")
    run.span("B", "holds", 0.1, 0.3)
    run.span("A", "holds", 0.4, 0.5)
    shown = [t for t in texts(draw.timeline(run.timeline)) if t in ("A", "B", "lock", "balance", "redis-2")]
    assert shown == ["A", "B", "lock", "balance", "redis-2"]


def test_an_owner_has_the_name_and_colour_of_the_worker_whose_token_it_is():
    run = Run("Owners", "A", "B")
    run.span("B", "holds", 0.1, 0.5, token=34)
    run.span("lock (redis-1 says)", "owner", 0.1, 0.4, owner="34", says="redis-1")
    run.span("lock (redis-1 says)", "owner", 0.5, 0.9, owner="0123456789abcdef", says="redis-1")
    picture = draw.timeline(run.timeline)
    fills = dict(re.findall(r"<title>(owner \w+)[^<]*</title><path [^>]*style=\"fill:(#\w+)", picture.svg()))
    assert fills["owner 34"] == draw.style.fill(1).lower()
    assert fills["owner 0123456789abcdef"] == draw.style.UNKNOWN and "012345678…" in texts(picture)


def test_accepted_refused_and_read_have_shapes_of_their_own():
    svg = draw.timeline(freeze()).svg()
    path = {
        what: re.search(rf"<title>{what}[^<]*</title><path ([^>]*)", svg).group(1)
        for what in ("B: 90", "A: 80", "A reads")
    }
    assert "C" in path["B: 90"] and "fill:#" in path["B: 90"]  # a filled dot
    assert "fill:none" in path["A: 80"] and path["A: 80"].count("L") == 11  # a hollow cross
    assert path["A reads"].count("L") == 2  # a triangle
    assert "A: 80 (token 33) refused" in texts(draw.timeline(freeze()))


def test_evidence_is_banded_over_the_lanes_it_names_and_merged_when_many():
    picture = draw.timeline(freeze(), judged(freeze()))
    assert "two holders for 0.50 s" in texts(picture)
    bands = re.findall(r'd="([^"]*)" style="fill:#d55e00;opacity:0.17"', picture.svg())
    assert len(bands) == 2  # over A and over B
    huge = draw.timeline(many(), judged(many()))
    labels = [t for t in texts(huge) if t.startswith("two holders")]
    assert len(labels) == 1 and re.search(r" and \d+ more$", labels[0])


def test_many_marks_of_a_lane_become_their_density():
    def marks(n):
        run = Run("Ticks", "A")
        for k in range(n):
            run.mark("A", "tick", k * 0.01)
        return draw.timeline(run.timeline)

    assert any(t.startswith("tick") for t in titles(marks(200)))
    dense = marks(201)
    assert not any(t.startswith("tick") for t in titles(dense))
    assert "201 marks: tick 201" in texts(dense) and "A: 201 marks: tick 201" in dense.text


def test_the_order_axis_gives_each_event_one_step():
    run = Run("Race", "A")
    for t in (0.1, 0.10001, 0.2, 5.0):  # the first two are one step
        run.mark("A", f"at {t}", t)
    svg = draw.timeline(run.timeline, axis="order").svg()
    at = [float(x) for x in re.findall(r"<title>at [^<]*</title><path d=\"M([\d.]+)", svg)]
    assert at[0] == at[1] and at[2] - at[1] == pytest.approx(at[3] - at[2], abs=0.02)
    assert "not to scale" in svg


def test_only_the_lanes_asked_for_are_drawn():
    shown = texts(draw.timeline(freeze(), lanes=["B"]))
    assert "B" in shown and "A" not in shown and "lock" not in shown
    with pytest.raises(LabError, match="no lane 'C'"):
        draw.timeline(freeze(), lanes=["C"])


def test_what_is_too_much_for_one_picture_is_said():
    run = Run("Sixty workers", *(f"w{i}" for i in range(60)))
    for i in range(60):
        run.mark(f"w{i}", "x", i * 0.1)
    assert any("20 more lanes are not drawn" in t for t in texts(draw.timeline(run.timeline)))


def test_a_fault_that_an_earlier_run_left_is_words_and_not_a_lane():
    run = Run("Nodes", "A")
    run.span("redis-3", "dead", 1e-5, None, fault=True)
    run.span("redis-1", "dead", 0.5, None, fault=True)
    run.span("A", "holds", 0.1, 1.0)
    picture = draw.timeline(run.timeline)
    assert "redis-1" in texts(picture) and "redis-3" not in texts(picture)
    assert "All the time dead: redis-3." in texts(picture) and "All the time dead: redis-3." in picture.text
    assert "redis-3" in texts(draw.timeline(run.timeline, lanes=["A", "redis-3"]))


def test_other_faults_of_a_worker_are_strips_with_their_names():
    run = Run("Links", "A")
    run.span("A", "holds", 0.0, 1.0)
    run.span("A", "cut from redis-1", 0.2, 0.8, fault=True)
    run.span("A", "cut from redis-1", 0.9, 0.95, fault=True)
    run.span("A", "50 ms late to redis-2", 0.97, 0.98, fault=True)
    shown = texts(draw.timeline(run.timeline))
    assert shown.count("cut from redis-1") == 1 and shown.count("50 ms late to redis-2") == 1


def test_what_a_server_says_does_not_die_with_its_observer():
    run = Run("Watched", "A", "·1")
    run.span("lock (redis-1 says)", "owner", 0.1, None, owner="x", says="redis-1")
    run.events = [Event(e.t, e.lane, e.kind, e.name, e.data, run.pids["·1"]) for e in run.events]
    run.mark("A", "x", 0.2)
    run.exit("·1", 1.0)
    assert "death" not in draw.timeline(run.timeline).text


def test_a_run_draws_itself():
    assert freeze().draw(judged(freeze())).svg() == draw.timeline(freeze(), judged(freeze())).svg()
    assert set(freeze()._repr_mimebundle_()) == {"text/html", "text/plain"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: draw.timeline(freeze(), axis="space"),
        lambda: draw.strip({"a": [-1.0]}),
        lambda: draw.strip({"a": [float("nan")]}),
        lambda: draw.pairs([("a", -1, 2)]),
        lambda: draw.curves({}, x="n", y="v"),
        lambda: draw.curves({"a": [(0, 1)]}, x="n", y="v"),
        lambda: draw.band(limiter(), limit=1, window_s=0),
    ],
)
def test_bad_input_is_told_in_three_lines(wrong):
    with pytest.raises(LabError) as error:
        wrong()
    assert len(str(error.value).splitlines()) == 3


# -- how they stand on a page


def test_every_picture_is_valid_small_and_for_light_and_dark(picture):
    svg = picture.svg()
    ET.fromstring(svg)
    assert len(svg) < 60_000
    assert "var(--jp-content-font-color1,currentColor)" in svg and "prefers-color-scheme:dark" in svg
    assert "background" not in svg and not re.search(r"fill:#f{6}", svg.split("<text")[0])
    assert draw.style.INK not in svg.split("</style>")[1]  # ink is the page's, never a fixed colour


def test_nothing_in_a_picture_can_clash_with_the_page_or_change_with_time(picture):
    svg = picture.svg()
    assert " id=" not in svg and "url(" not in svg  # so two pictures on one page cannot take each other's parts
    assert svg == picture.svg()
    assert not re.search(r"\b20\d\d-\d\d-\d\d", svg)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_record_gives_the_same_picture(name):
    first, second = EVERY[name](), EVERY[name]()
    assert first.svg() == second.svg() and first.text == second.text


def test_the_bundle_has_the_picture_and_its_twin():
    picture = draw.timeline(crowd())
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == picture.text
    assert (
        "<details><summary>as text</summary><pre>Many marks close to each other &amp; &lt;names&gt;"
        in bundle["text/html"]
    )


def test_a_png_is_written(tmp_path):
    path = draw.timeline(freeze()).png(tmp_path / "freeze.png", dpi=50)
    assert path.read_bytes().startswith(b"\x89PNG")


def extents(picture, dpi=144):
    """Every text with its box in points, as the PNG has it."""
    renderer = RendererAgg(1, 1, dpi)
    picture.figure.set_dpi(dpi)
    found = [t for t in picture.figure.findobj(Text) if t.get_text()]
    return [(t.get_text(), t.get_window_extent(renderer).transformed(Affine2D().scale(72 / dpi))) for t in found]


def test_no_two_texts_touch_and_none_leaves_the_picture(picture):
    boxes = extents(picture)
    wide, high = picture.figure.get_size_inches() * 72
    for text, box in boxes:
        assert box.x0 >= 0 and box.x1 <= wide and box.y0 >= 0 and box.y1 <= high, text
    for (one, a), (two, b) in combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 0.5 or down <= 3, f"{one!r} touches {two!r}"  # boxes have room for descenders


def test_ten_thousand_events_stay_small():
    timeline = many()
    assert len(timeline.events) > 10_000
    picture = draw.timeline(timeline, judged(timeline))
    assert len(picture.svg()) < 60_000 and len(picture.text) < 60_000


# -- and beside other code


def test_no_pyplot_and_no_setting_of_the_process_changes():
    code = """
import sys, matplotlib
before = list(dict.items(matplotlib.rcParams))  # as they lie there: asking for the backend would choose one
from labkit import draw
from labkit.record import Timeline
draw.timeline(Timeline(title="x")).svg()
draw.strip({"a": [0.1]}).png(sys.argv[1])
assert list(dict.items(matplotlib.rcParams)) == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, "/dev/null"], check=True, timeout=120)


def test_a_notebooks_own_style_does_not_change_our_pictures():
    plain = EVERY["timeline"]()
    wild = {
        "font.size": 30, "font.family": "serif", "font.weight": "bold", "lines.linewidth": 9, "figure.facecolor": "red",
        "path.sketch": (5, 100, 5), "figure.autolayout": True, "text.color": "red", "text.usetex": True,
    }  # fmt: skip
    with matplotlib.rc_context(wild):
        styled = EVERY["timeline"]()
        assert styled.svg() == plain.svg()
    assert [box.bounds for _, box in extents(styled)] == [box.bounds for _, box in extents(plain)]


def test_many_threads_draw_at_once():
    timelines = [freeze(), crowd(), messages()]
    expected = [draw.timeline(t).svg() for t in timelines]
    shared = draw.timeline(timelines[0])
    failures = []

    def work():
        for _ in range(5):
            for timeline, svg in zip(timelines, expected, strict=True):
                if draw.timeline(timeline).svg() != svg or shared.svg() != expected[0]:
                    failures.append("another picture")

    def guarded():
        try:
            work()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


values = st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.lists(st.integers(), max_size=2)
data = st.dictionaries(
    st.sampled_from(["says", "by", "ok", "op", "token", "owner", "fault", "raised", "value", "outcome", "lock"]),
    values,
    max_size=4,
)


@st.composite
def records(draw_one):
    """Any record, also half a one, as the panel may see it."""
    events, number = [], 0
    for _ in range(draw_one(st.integers(0, 25))):
        t = draw_one(st.integers(0, 10_000_000)) / 1e6
        lane, kind = (
            draw_one(st.sampled_from(["A", "B", "x (y says)", "q"])),
            draw_one(st.sampled_from(["begin", "mark", "end"])),
        )
        number += kind == "begin"
        more = {"span": number} if kind != "mark" else {}
        events.append(Event(t, lane, kind, draw_one(st.text(max_size=40)), {**draw_one(data), **more}, 10))
    head = [Event(0.0, "lab", "note", "A", {"what": "worker", "pid": 10})] if draw_one(st.booleans()) else []
    return Timeline(tuple(head + sorted(events, key=lambda e: e.t)), draw_one(st.text(max_size=200)))


@given(records(), st.sampled_from(["time", "order"]))
def test_no_record_makes_a_draw_fail(timeline, axis):
    picture = draw.timeline(timeline, axis=axis)
    ET.fromstring(picture.svg())
    assert picture.text and picture.alt


@given(
    st.lists(st.tuples(st.floats(0, 500), st.floats(8, 160)), max_size=40).map(sorted), st.integers(1, 5), st.booleans()
)
def test_placed_labels_never_touch_and_no_leader_crosses_one(labels, rows, strict):
    places = place(labels, 0.0, 500.0, rows, strict)
    put = [(x, width, p) for (x, width), p in zip(labels, places, strict=True) if p]
    for (_, wide_a, a), (_, wide_b, b) in combinations(put, 2):
        if a.row == b.row:
            assert a.left + wide_a + GAP <= b.left + 1e-6 or b.left + wide_b + GAP <= a.left + 1e-6
    for x, _, p in put:
        for _, other_wide, other in put:
            if other.row < p.row:  # the line down to p passes the rows above it
                assert not other.left + 1e-6 < x < other.left + other_wide
    if strict:
        assert overflow(labels, places, 500.0) <= 1e-6


# -- trees
TREE = ("Once?", "goal", {"no": "Take one Redis.", "yes": ("How many?", "n", {"< 5": "few", "> 5": "many"})})


@pytest.mark.parametrize(
    ("path", "said", "not_said"),
    [
        (["no"], "Once?; no: Take one Redis.", "How many"),
        (["yes", "> 5"], "Once?; yes: How many?; > 5: many", "few"),
        (["yes", None], "yes: How many?; no answer: none of these takes this need", "few"),
        ([], "no path is marked", "Once"),
    ],
)
def test_a_tree_says_which_way_was_taken(path, said, not_said):
    picture = draw.tree(TREE, path, title="Which lock")
    assert said in picture.alt and not_said not in picture.alt and "· · " in picture.text
    assert picture.text.count("→") == (len(path) + 1 if path else 0) and picture.svg().startswith("<svg")
