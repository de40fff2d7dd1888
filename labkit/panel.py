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
_ASK_S = 2.0  # servers change their roles without an event in the record
_REST = 2  # so many times as long as a look took, the next one waits: a long run leaves the kernel its time
_LAST_EVENTS = 4
_WIDTH_IN = 7.0  # of the picture: a notebook's column on a projector is about as wide

# state -> (sign, colour): the sign says it without colour
_LOOKS = {
    "running": ("●", "#009E73"),
    "frozen": ("❚❚", "#0072B2"),
    "held": ("◆", "#E69F00"),
    "ready": ("○", "#888888"),
    "done": ("✓", "#888888"),
    "dead": ("✕", "#D55E00"),
}
# Colours of the page's own theme, light or dark; a state's colour only tints what is written in the page's ink.
_STYLE = """<style>
.labkit-panel {max-width: 60em; overflow: visible; padding: 0 6px}
.labkit-panel .widget-html, .labkit-panel .widget-html-content {margin: 0; height: auto; min-height: 0;
  line-height: 1.35; font-size: 13px; color: var(--jp-content-font-color1)}
.labkit-row {border-bottom: 1px solid var(--jp-border-color2); padding: 1px 0; overflow: visible}
.labkit-row .widget-hbox {overflow: visible}
.labkit-panel button.jupyter-button {height: 26px; line-height: 24px; margin: 1px 4px 1px 0; padding: 0 9px;
  border: 1px solid var(--jp-border-color1); border-radius: 3px; color: var(--jp-ui-font-color1); box-shadow: none}
.labkit-panel button.jupyter-button:disabled {border-color: transparent}
.labkit-panel button.jupyter-button:focus-visible {outline: 2px solid var(--jp-brand-color1); outline-offset: 1px}
.labkit-drawer {padding: 0 0 2px 1em}
.labkit-panel .labkit-drawer button.jupyter-button {padding: 0 6px; font-size: 12px}
.labkit-who {display: grid; grid-template-columns: minmax(10.5em, auto) 1fr; column-gap: 8px; align-items: baseline}
.labkit-who b + span {opacity: .75; padding-left: 5px}
.labkit-who small {grid-column: 1 / 3; font-size: 12px}
.labkit-state {justify-self: start; border-radius: 9px; padding: 0 8px; white-space: nowrap;
  background: color-mix(in srgb, var(--state) 24%, transparent); border: 1px solid var(--state)}
.labkit-error {white-space: pre-wrap; margin: 4px 0; padding: 4px 10px; border-left: 4px solid #D55E00;
  background: color-mix(in srgb, #D55E00 12%, transparent)}
.labkit-events {margin: 4px 0; font-size: 12px; line-height: 1.35; color: var(--jp-content-font-color1)}
</style>"""


class _Row:
    """One row as it is shown: who it is and how it does, its buttons, and the rarer ones behind "more"."""

    def __init__(self, row: buttons.Row, click):
        self.label = widgets.HTML(layout=widgets.Layout(width="18.5em"))
        self.buttons = {b.words: _button(b.words, row.name, click) for b in row.buttons}
        often = [self.buttons[b.words] for b in row.buttons if not b.rare]
        rare = [self.buttons[b.words] for b in row.buttons if b.rare]
        wrap = {"flex_flow": "row wrap", "align_items": "center"}
        columns = "repeat(4, max-content)"  # a worker has four for each node
        drawer = widgets.GridBox(rare, layout=widgets.Layout(display="none", grid_template_columns=columns))
        drawer.add_class("labkit-drawer")
        self.more = widgets.ToggleButton(description="more", tooltip=f"more for {row.name}")
        self.more.layout.width = "auto"
        _hear_while_busy(self.more)
        self.more.observe(
            lambda change: setattr(drawer.layout, "display", "grid" if change["new"] else "none"), "value"
        )
        often += [self.more] if rare else []
        line = widgets.HBox([self.label, widgets.HBox(often, layout=widgets.Layout(flex="1 1 0%", **wrap))])
        line.layout.align_items = "center"
        self.box = widgets.VBox([line, *([drawer] if rare else [])])
        self.box.add_class("labkit-row")
        self.show(row)

    def show(self, row: buttons.Row) -> None:
        """The buttons first: who reads the new state finds what can be pressed in it, also by Tab."""
        for button in sorted(row.buttons, key=lambda b: not b.possible):
            shown = self.buttons[button.words]
            _put(shown, not button.possible, "disabled")
            _put(shown.layout, "none" if button.hides and not button.possible else None, "display")
        details = html.escape("; ".join(row.details))
        if row.name:
            sign, colour = _LOOKS[row.state]
            told = (
                f"<div><b>{html.escape(row.name)}</b><span>{html.escape(row.role)}</span></div>"
                f"<span class='labkit-state' style='--state:{colour}'>{sign} {html.escape(row.words)}</span>"
                f"{f'<small>{details}</small>' if details else ''}"
            )
        else:
            told = f"<div>{details}</div>"
        _put(self.label, f"<div class='labkit-who' data-name='{html.escape(row.name)}'>{told}</div>")


class Panel:
    """A live panel for one lab: a cell's last value. `press(words)` from code; `close()` ends its looking."""

    def __init__(self, lab, picture: bool = True):
        self._lab, self._run, self._rows = lab, lab.run_now, {}
        self._roles, self._asked, self._known, self._seen = {}, 0.0, None, None
        self._showing = threading.Lock()
        self._message, self._events = widgets.HTML(), widgets.HTML()
        self._table = widgets.VBox()
        self._picture = widgets.HTML()
        shown = [widgets.HTML(_STYLE), self._table, self._message, self._events, *([self._picture] if picture else [])]
        self.box = widgets.VBox(shown)
        self.box.add_class("labkit-panel")
        self._stop = threading.Event()
        self.refresh()
        self._thread = threading.Thread(target=self._live, name=f"panel of {lab.name}", daemon=True)
        self._thread.start()

    def press(self, words: str) -> None:
        """Press the button with these words ("freeze A"; "pause A" is the same). Raises what the verb raises."""
        _put(self._message, "")
        buttons.find(self._lab, words).do()
        self.refresh()

    def close(self) -> None:
        """No more looking. The last state stays to be seen."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def refresh(self) -> None:
        """Show the state as it is now."""
        with self._showing:
            if self._lab.closed:
                self._say_closed()
                return
            run = self._lab.run_now
            self._run = run or self._run
            timeline = self._run.timeline if self._run else None
            self._show_rows(timeline if run else None)
            self._show_record(timeline, run is not None)

    # -- inside
    def _click(self, words: str) -> None:
        """What a browser's click calls: `press`, but an error becomes a message, as nobody could catch it."""
        try:
            self.press(words)
        except LabError as error:
            _put(self._message, f"<div class='labkit-error' role='alert'>{html.escape(str(error))}</div>")

    def _say_closed(self) -> None:
        self._table.children = ()
        _put(self._events, "")
        _put(
            self._message,
            f"<p>The laboratory <b>{html.escape(self._lab.name)}</b> is closed: its servers and workers are gone. "
            "Run the cell with <code>Lab(...)</code> again, then this one.</p>",
        )
        self._stop.set()

    def _show_rows(self, timeline) -> None:
        rows = buttons.rows(self._lab, timeline, self._roles_now())
        words = {row.name: [b.words for b in row.buttons] for row in rows}
        if words != {name: list(row.buttons) for name, row in self._rows.items()}:
            same = {name: row for name, row in self._rows.items() if list(row.buttons) == words.get(name)}
            self._rows = {row.name: same.get(row.name) or _Row(row, self._click) for row in rows}
            self._table.children = tuple(row.box for row in self._rows.values())
        for row in rows:
            self._rows[row.name].show(row)

    def _roles_now(self) -> dict[str, str]:
        """The servers' roles; they are asked when a fault began or ended, and else every two seconds."""
        known = [(node.name, node.state) for node in self._lab.nodes], list(self._lab._faults)
        if known != self._known or time.monotonic() - self._asked >= _ASK_S:
            self._roles, self._known, self._asked = buttons.ask_roles(self._lab), known, time.monotonic()
        return self._roles

    def _show_record(self, timeline, going_on: bool) -> None:
        if timeline is None:
            _put(self._events, "<p>No run is going on yet: its workers will be seen here.</p>")
            return
        lines = [line for e in timeline.events if (line := _line(e))][-_LAST_EVENTS:]
        lines += [] if going_on else ["The run is over; its workers are gone, its faults are healed."]
        _put(self._events, f"<pre class='labkit-events'>{html.escape(chr(10).join(lines))}</pre>")
        if self._picture in self.box.children:
            _put(self._picture, draw_timeline(timeline, width_in=_WIDTH_IN).svg())

    def _live(self) -> None:
        spent = 0.0
        while not self._stop.wait(max(_REFRESH_S, _REST * spent)):
            began = time.monotonic()
            now = (self._lab.closed, self._lab.run_now, self._lab._recorder.size(), len(self._lab.nodes))
            if now == self._seen and began - self._asked < _ASK_S:
                continue
            try:
                self.refresh()
                self._seen = now
            except (LabError, KeyError, RuntimeError, OSError):  # the lab changed while we looked
                self._seen = None
            spent = time.monotonic() - began

    def _repr_mimebundle_(self, **how):
        return self.box._repr_mimebundle_(**how)

    def __repr__(self) -> str:
        return f"Panel of {self._lab!r}"


def _button(words: str, name: str, click) -> widgets.Button:
    short = re.sub(rf"( of| to)? {re.escape(name)}\b", "", words, count=1) if name else words  # the row has the name
    button = widgets.Button(description=short, tooltip=words, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: click(words))
    _hear_while_busy(button)
    return button


def _hear_while_busy(widget) -> None:
    """Let what the page sends go to the thread that JupyterLab chose for it.

    ipykernel 7.4 sends it to the thread that last wrote to the widget: the cell's own, which may be waiting.
    """
    if widget.comm is not None:
        widget.comm._reply_subshell_for = lambda data, chosen: chosen


def _line(e) -> str:
    """An event in words; '' for the lab's own notes, and for a server that no longer says what it said."""
    if e.lane == LAB or e.kind == "note" or not e.name or (e.kind == "end" and e.name == "owner"):
        return ""
    what = e.data.get("owner", e.name) if e.kind == "begin" else e.name
    return f"{e.t:8.3f} s  {e.lane}: {what}{' ends' * (e.kind == 'end')}"


def _put(widget, value, trait: str = "value") -> None:
    """Set it only when it changed: no flicker, and no traffic."""
    if getattr(widget, trait) != value:
        setattr(widget, trait, value)
