"""The panel: buttons for the verbs of a lab, the state of everybody in words, and the picture of the run as it grows.

A view only. A button hands its verb to the lab and returns; what is seen comes from the lab and its record.
`panel.press("freeze A")` does from code exactly what the button does.
"""

import html
import re
import threading
import time

import ipywidgets as widgets

from . import buttons
from .draw import timeline as draw_timeline
from .errors import LabError
from .record import LAB

_REFRESH_S = 0.3
_LOOK_ANYWAY_S = 2.0  # servers change their roles without an event in the record
_LAST_EVENTS = 5

# state -> (sign, colour): the sign says it without colour
_LOOKS = {
    "running": ("●", "#009E73"),
    "frozen": ("❚❚", "#0072B2"),
    "held": ("◆", "#E69F00"),
    "ready": ("○", "#777777"),
    "done": ("✓", "#777777"),
    "dead": ("✕", "#D55E00"),
}


class _Row:
    """One worker or node: what it is and does, its buttons, and the rarer ones behind "more"."""

    def __init__(self, name: str, made, click):
        self.label = widgets.HTML(layout=widgets.Layout(width="17em"))
        self.buttons = {b.words: self._button(b.words, name, click) for b in made}
        often = [self.buttons[b.words] for b in made if not b.rare]
        rare = [self.buttons[b.words] for b in made if b.rare]
        self.more = widgets.ToggleButton(
            description="more", tooltip=f"more for {name}", layout=widgets.Layout(width="auto")
        )
        drawer = widgets.HBox(rare, layout=widgets.Layout(display="none", flex_flow="row wrap", margin="0 0 0 17em"))
        self.more.observe(
            lambda change: setattr(drawer.layout, "display", "flex" if change["new"] else "none"), "value"
        )
        line = [self.label, *often, *([self.more] if rare else [])]
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.box = widgets.VBox([widgets.HBox(line, layout=wrap), *([drawer] if rare else [])])

    @staticmethod
    def _button(words: str, name: str, click) -> widgets.Button:
        short = (
            re.sub(rf"( of| to)? {re.escape(name)}\b", "", words, count=1) if name else words
        )  # the row has the name
        button = widgets.Button(description=short, tooltip=words, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: click(words))
        return button

    def show(self, made, state: tuple[str, str], name: str) -> None:
        sign, colour = _LOOKS[state[0]]
        text = f"<b>{html.escape(name)}</b> <span style='color:{colour}'>{sign}</span> {html.escape(state[1])}"
        _put(self.label, text if name else "")
        for button in made:
            if self.buttons[button.words].disabled == button.possible:
                self.buttons[button.words].disabled = not button.possible


class Panel:
    """A live panel for one lab: a cell's last value. `press(words)` from code; `close()` ends its looking."""

    def __init__(self, lab, picture: bool = True):
        self._lab, self._rows, self._seen, self._looked = lab, {}, None, 0.0
        self._showing = threading.Lock()
        self._message, self._events = widgets.HTML(), widgets.HTML()
        self._table = widgets.VBox()
        self._picture = widgets.HTML() if picture else None
        self.box = widgets.VBox([self._table, self._message, self._events, *([self._picture] if picture else [])])
        self.box.add_class("labkit-panel")
        self._stop = threading.Event()
        self.refresh()
        threading.Thread(target=self._live, name=f"panel of {lab.name}", daemon=True).start()

    def press(self, words: str) -> None:
        """Press the button with these words ("freeze A"; "pause A" is the same). Raises what the verb raises."""
        button = buttons.find(self._lab, words)
        _put(self._message, "")
        button.do()
        self.refresh()

    def close(self) -> None:
        """No more looking. The last state stays to be seen."""
        self._stop.set()

    def refresh(self) -> None:
        """Show the state as it is now."""
        with self._showing:
            if self._lab.closed:
                self._say_closed()
            else:
                self._show_rows()
                self._show_record()

    # -- inside
    def _click(self, words: str) -> None:
        """What a browser's click calls: `press`, but an error becomes a message, as nobody could catch it."""
        try:
            self.press(words)
        except LabError as error:
            _put(self._message, f"<pre role='alert' style='white-space:pre-wrap'>{html.escape(str(error))}</pre>")

    def _say_closed(self) -> None:
        self._table.children = ()
        _put(self._events, "")
        _put(
            self._message,
            f"<p>The laboratory <b>{html.escape(self._lab.name)}</b> is closed: its servers and workers are gone. "
            "Run the cell with <code>Lab(...)</code> again, then this one.</p>",
        )
        self.close()

    def _show_rows(self) -> None:
        rows = {name: made for name, made in buttons.all_of(self._lab).items() if made}
        words = {name: [b.words for b in made] for name, made in rows.items()}
        if words != {name: list(row.buttons) for name, row in self._rows.items()}:
            self._rows = {name: _Row(name, made, self._click) for name, made in rows.items()}
            self._table.children = tuple(row.box for row in self._rows.values())
        people = {who.name: who for who in [*buttons.workers(self._lab), *self._lab.nodes]}
        for name, made in rows.items():
            state = buttons.state(self._lab, people[name]) if name else ("running", "")
            self._rows[name].show(made, state, name)

    def _show_record(self) -> None:
        run = self._lab.run_now
        if run is None:
            _put(self._events, "<p>No run is going on. Open one, or look at the picture of the last.</p>")
            return
        timeline = run.timeline
        told = [e for e in timeline.events if e.lane != LAB and e.kind != "note" and (e.name or e.kind != "end")]
        lines = [f"{e.t:8.3f} s  {e.lane}: {e.name}{' ends' * (e.kind == 'end')}" for e in told[-_LAST_EVENTS:]]
        _put(self._events, f"<pre style='margin:0'>{html.escape(chr(10).join(lines))}</pre>")
        if self._picture:
            _put(self._picture, draw_timeline(timeline).svg())

    def _live(self) -> None:
        while not self._stop.wait(_REFRESH_S):
            run = self._lab.run_now
            now = (self._lab.closed, run, self._lab._recorder.size(), len(self._lab.nodes))
            if now == self._seen and time.monotonic() - self._looked < _LOOK_ANYWAY_S:
                continue
            self._seen, self._looked = now, time.monotonic()
            try:
                self.refresh()
            except (LabError, KeyError, RuntimeError):  # the lab changed while we looked: the next look will do
                self._seen = None

    def _repr_mimebundle_(self, **how):
        return self.box._repr_mimebundle_(**how)

    def __repr__(self) -> str:
        return f"Panel of {self._lab!r}"


def _put(widget, value: str) -> None:
    """Set it only when it changed: no flicker, and no traffic."""
    if widget.value != value:
        widget.value = value
