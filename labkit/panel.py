"""The panel: buttons for the verbs of a lab, what they did in words, and the picture of the run as it grows.

A view only. A button hands its verb to the lab and returns; everything seen comes from the lab and its record.
`panel.press("freeze A")` does from code exactly what the button does.
"""

import html
import threading
from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets as widgets

from .draw import timeline as draw_timeline
from .errors import LabError
from .observe import OBSERVER
from .record import LAB

_REFRESH_S = 0.3
_LAST_EVENTS = 5
_SAME = {"pause": "freeze", "resume": "wake"}  # the lab's word -> the button's; press() takes both

# state -> (sign, colour): the sign says it without colour
_LOOKS = {
    "running": ("●", "#009E73"),
    "frozen": ("❚❚", "#0072B2"),
    "held": ("◆", "#E69F00"),
    "ready": ("○", "#777777"),
    "done": ("✓", "#777777"),
    "dead": ("✕", "#D55E00"),
}


@dataclass(frozen=True)
class Action:
    """One button: its words, what it does, and whether that is possible now."""

    words: str
    do: Callable[[], None]
    possible: bool


def state_of(lab, who) -> tuple[str, str]:
    """(one of the states above, the same in words) of a worker or a node."""
    if who in lab.nodes:
        word = {"running": "running", "frozen": "frozen"}.get(who.state, "dead")
        return word, f"{who.role}, {who.state}"
    if who.frozen:
        return "frozen", who._status
    if who.state in ("raised", "killed"):
        return "dead", who.state
    if who.state == "done" or _exited(lab, who):
        return "done", "done"
    if who.state == "new":
        return "ready", "not started"
    return ("held", f"held {who.state}") if who.state.startswith("at ") else ("running", "running")


def _exited(lab, worker) -> bool:
    return any(e.name == "exit" and e.data["pid"] == worker.pid for e in lab.run_now.timeline.events if e.lane == LAB)


def actions(lab, who) -> list[Action]:
    """What can be done to a worker or a node, as buttons."""
    state, name = state_of(lab, who)[0], who.name
    alive = state in ("running", "held", "ready", "frozen")
    made = [
        Action(f"freeze {name}", lambda: lab.pause(who), alive and state != "frozen"),
        Action(f"wake {name}", lambda: lab.resume(who), state == "frozen"),
        Action(f"kill {name}", lambda: lab.kill(who), alive),
    ]
    if who in lab.nodes:
        made += [
            Action(f"restart {name}, data kept", lambda: lab.restart(who, data="kept"), state == "dead"),
            Action(f"restart {name}, data lost", lambda: lab.restart(who, data="lost"), state == "dead"),
        ]
    else:
        made.insert(0, Action(f"start {name}", who.start, state in ("ready", "held")))
    return made


def link_actions(lab, worker, node) -> list[Action]:
    """What can be done to a worker's way to a node."""
    broken = bool(lab._link_faults(worker.name, node))
    return [
        Action(f"cut {worker.name} from {node.name}", lambda: lab.cut(worker, node), not broken),
        Action(f"heal {worker.name} to {node.name}", lambda: lab.heal(worker, node), broken),
    ]


class Panel:
    """A live panel for one lab. Show it as a cell's last value; `press(words)` from code; `close()` stops its thread."""

    def __init__(self, lab, picture: bool = True):
        self._lab, self._seen, self._rows = lab, None, {}
        self._message = widgets.HTML()
        self._table = widgets.VBox()
        self._events = widgets.HTML()
        self._picture = widgets.HTML() if picture else None
        self.box = widgets.VBox([self._table, self._message, self._events, *([self._picture] if picture else [])])
        self._stop = threading.Event()
        self.refresh()
        self._thread = threading.Thread(target=self._live, name=f"panel of {lab.name}", daemon=True)
        self._thread.start()

    # -- from code
    def press(self, words: str) -> None:
        """Press the button with these words ("freeze A"; "pause A" is the same). Raises what the verb raises."""
        first, _, rest = words.partition(" ")
        wanted = f"{_SAME.get(first, first)} {rest}"
        known = {action.words: action for action in self._all_actions()}
        if wanted not in known:
            raise LabError(
                f"The panel has no button {words!r}.",
                "The name may be misspelt, or there is no such worker or node now.",
                f"Press one of: {', '.join(known) or 'none: the laboratory is empty or closed'}",
            )
        self._message.value = ""
        known[wanted].do()
        self.refresh()

    def close(self) -> None:
        self._stop.set()

    # -- the view
    def _workers(self):
        run = self._lab.run_now
        return [w for w in run.workers.values() if w.name[0] != OBSERVER] if run else []

    def _all_actions(self) -> list[Action]:
        if self._lab.closed:
            return []
        mine = [action for who in [*self._workers(), *self._lab.nodes] for action in actions(self._lab, who)]
        pairs = [(worker, node) for worker in self._workers() for node in self._lab.nodes]
        return mine + [action for pair in pairs for action in link_actions(self._lab, *pair)]

    def _click(self, words: str) -> None:
        """What a browser's click calls: the same, but an error becomes a message, as nobody could catch it."""
        try:
            self.press(words)
        except LabError as error:
            self._message.value = f"<pre role='alert'>{html.escape(str(error))}</pre>"

    def refresh(self) -> None:
        """Show the state as it is now. Cheap when nothing changed."""
        if self._lab.closed:
            self._table.children = ()
            self._message.value = (
                f"<p>The laboratory <b>{html.escape(self._lab.name)}</b> is closed: its servers and workers are gone. "
                "Run the cell with <code>Lab(...)</code> again, then this one.</p>"
            )
            self._events.value = ""
            self.close()
            return
        people = [*self._workers(), *self._lab.nodes]
        names = [who.name for who in people]
        if names != list(self._rows):
            self._rows = {who.name: self._new_row(who) for who in people}
            self._table.children = tuple(row for row, _, _ in self._rows.values())
        for who in people:
            _, label, buttons = self._rows[who.name]
            state, words = state_of(self._lab, who)
            sign, colour = _LOOKS[state]
            _put(label, f"<b>{html.escape(who.name)}</b> <span style='color:{colour}'>{sign}</span> {html.escape(words)}")
            now = {action.words: action for action in self._row_actions(who)}
            for button in buttons:
                button.disabled = not now[button.description].possible
        self._show_record()

    def _row_actions(self, who) -> list[Action]:
        links = [] if who in self._lab.nodes else self._lab.nodes
        return actions(self._lab, who) + [action for node in links for action in link_actions(self._lab, who, node)]

    def _new_row(self, who):
        label = widgets.HTML(layout=widgets.Layout(min_width="16em"))
        buttons = []
        for action in self._row_actions(who):
            button = widgets.Button(description=action.words, layout=widgets.Layout(width="auto"))
            button.on_click(lambda button: self._click(button.description))
            buttons.append(button)
        row = widgets.HBox([label, *buttons], layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        return row, label, buttons

    def _show_record(self) -> None:
        run = self._lab.run_now
        if run is None:
            _put(self._events, "<p>No run is going on. Open one, or look at the picture of the last.</p>")
            return
        timeline = run.timeline
        if self._seen == (run, len(timeline.events)):
            return
        self._seen = (run, len(timeline.events))
        told = [e for e in timeline.events if e.lane != LAB and e.kind != "note" and (e.name or e.kind != "end")]
        lines = [f"{e.t:8.3f} s  {e.lane}: {e.name}{' ends' * (e.kind == 'end')}" for e in told[-_LAST_EVENTS:]]
        _put(self._events, f"<pre style='margin:0'>{html.escape(chr(10).join(lines))}</pre>")
        if self._picture:
            _put(self._picture, draw_timeline(timeline).svg())

    def _live(self) -> None:
        while not self._stop.wait(_REFRESH_S):
            try:
                self.refresh()
            except (LabError, RuntimeError, KeyError) as error:  # the lab changed while we looked: next time
                self._message.value = "" if self._lab.closed else html.escape(str(error))

    def _repr_mimebundle_(self, **how):
        return self.box._repr_mimebundle_(**how)

    def __repr__(self) -> str:
        return f"Panel of {self._lab!r}"


def _put(widget, value: str) -> None:
    """Set it only when it changed: no flicker, and no traffic."""
    if widget.value != value:
        widget.value = value
