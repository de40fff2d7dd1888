"""The notebooks of the browser's tests, and the course's own made quick."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from papers import tags

BEAT = """from labkit import Lab, Panel


def beat(w, store, n):
    r = w.client(store)
    for i in range(n):
        r.incr("n")
        w.mark(f"beat {i}")
        w.work(0.05)
    return n"""

_PANEL = """panel = Panel(lab)
panel"""


def quick(path) -> None:
    nb = nbformat.read(path, 4)
    for cell in nb.cells:
        if "parameters" in tags(cell):
            cell.source += "\nQUICK = True"
    nbformat.write(nb, path)


def _page(*sources: str) -> str:
    cells = [new_markdown_cell("# A page of the tests"), *map(new_code_cell, sources)]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return nbformat.writes(new_notebook(cells=cells, metadata={"kernelspec": kernel}))


PAGES = {
    "91-drive": _page(
        BEAT,
        """lab = Lab("drive")
store, other = lab.redis(2)
run = lab.run("You drive").open()
a = lab.worker("A", beat, store, 100_000).start()
b = lab.worker("B", beat, store, 100_000).start()
lab.watch(store, "n")""",
        _PANEL,
    ),
    "92-failover": _page(
        BEAT,
        """lab = Lab("failover")
nodes = lab.redis(replicas=1, sentinels=3)
run = lab.run("The primary fails").open()
workers = [lab.worker(name, beat, nodes[0], 100_000).start() for name in "ABC"]""",
        _PANEL,
    ),
    "93-waits": _page(
        BEAT,
        """lab = Lab("waits")
store = lab.redis()
run = lab.run("A cell waits").open()
a = lab.worker("A", beat, store, 100_000)""",
        _PANEL,
        "a.join(timeout_s=300)",
    ),
}
