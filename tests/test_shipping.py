import linecache
import threading
import traceback

import pytest

from labkit import LabError, shipping

CELL = """
LIMIT = 3

class Basket:
    def __init__(self, *fruit):
        self.fruit = fruit

    def first(self):
        return self.fruit[0]

def outer(times):
    def inner(w, basket):
        if len(basket.fruit) > LIMIT:
            raise ValueError(f"too many for {w}")  # the line to be shown
        return [basket.first()] * times
    return inner

def through_the_library(w):
    import pickle
    return pickle._loads(b"no pickle")
"""


@pytest.fixture
def cell():
    """What a notebook cell defines: code whose lines are in linecache and in no file, in the module __main__."""
    names = {"__name__": "__main__"}
    linecache.cache["<a cell>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<a cell>")
    exec(compile(CELL, "<a cell>", "exec"), names)
    yield names
    linecache.cache.pop("<a cell>", None)


def raised_by(function, *args) -> Exception:
    try:
        function(*args)
    except Exception as error:
        return error


def test_a_function_travels_with_what_it_refers_to(cell):
    blob, sources = shipping.pack(cell["outer"](2), (cell["Basket"]("apple", "pear"),), {"more": 1})
    function, (basket,), named = shipping.unpack(blob, sources)
    assert function("w", basket) == ["apple", "apple"]
    assert named == {"more": 1}


def test_globals_are_copied(cell):
    blob, sources = shipping.pack(cell["outer"](1), (cell["Basket"](*"abcd"),), {})
    cell["LIMIT"] = 100
    function, (basket,), _ = shipping.unpack(blob, sources)
    assert isinstance(raised_by(function, "w", basket), ValueError)


def test_the_lines_travel_so_that_a_traceback_can_be_read(cell):
    blob, sources = shipping.pack(cell["outer"](1), (cell["Basket"](*"abcd"),), {})
    del linecache.cache["<a cell>"]  # the worker's process never had it
    function, (basket,), _ = shipping.unpack(blob, sources)
    told = shipping.traceback_text(raised_by(function, "w", basket), sources)
    assert told.splitlines() == [
        "  <a cell>, line 14, in inner",
        '    raise ValueError(f"too many for {w}")  # the line to be shown',
    ]


def test_a_traceback_shows_frames_of_shipped_code_only(cell):
    blob, sources = shipping.pack(cell["through_the_library"], (), {})
    function, *_ = shipping.unpack(blob, sources)
    error = raised_by(function, "w")
    assert len(traceback.extract_tb(error.__traceback__)) > 2
    told = shipping.traceback_text(error, sources)
    assert told == '  <a cell>, line 20, in through_the_library\n    return pickle._loads(b"no pickle")'


class Silent:
    def __reduce__(self):
        raise TypeError


@pytest.mark.parametrize(
    "what", [threading.Lock(), Silent(), (value for value in "x")], ids=["lock", "silent", "generator"]
)
def test_what_cannot_leave_this_process_is_refused_in_three_lines(what):
    def uses(w, it):
        return it

    with pytest.raises(LabError) as told:
        shipping.pack(uses, (what,), {})
    assert len(str(told.value).splitlines()) == 3
    assert "uses cannot be shipped to a worker: " in told.value.what and ".." not in told.value.what
    assert "w.client(store)" in told.value.todo


def test_a_closure_is_named_too(cell):
    lock = threading.Lock()
    cell["lock"] = lock
    exec("def locked(w):\n    with lock:\n        return 1", cell)
    with pytest.raises(LabError, match="locked cannot be shipped"):
        shipping.pack(cell["locked"], (), {})
