"""Who imports whom: downwards only, and nothing heavy where processes are forked."""

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import labkit

ROOT = Path(labkit.__file__).parent
HEAVY = ("matplotlib", "numpy", "grpc", "pyetcd", "kazoo", "ipywidgets", "IPython", "papermill", "nbformat")


def imports(tree: ast.AST, module: str, is_package: bool, later: bool):
    """Dotted names of what a module imports, down to the thing itself; later: also inside functions."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not later:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        todo += ast.iter_child_nodes(node)


FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def graph(later: bool) -> dict[str, set[str]]:
    """Module -> every name that it imports (labkit's modules, and the roots of all others)."""
    found = {}
    for module, path in FILES.items():
        names = set(imports(parsed(path), module, path.name == "__init__.py", later))
        ours = {name for name in names if name.split(".")[0] == "labkit"}
        found[module] = {name if name in FILES else name.rpartition(".")[0] for name in ours}
        found[module] |= {name.split(".")[0] for name in names - ours}
    return found


def unit(name: str) -> str:
    """'check' for labkit.check and labkit.check.limits; other names stay whole."""
    return name.split(".")[1] if name.startswith("labkit.") else name


def units(later: bool) -> dict[str, set[str]]:
    """The graph of labkit's files and folders, without the standard library."""
    found: dict[str, set[str]] = {}
    for module, names in graph(later).items():
        known = {unit(n) for n in names if n.split(".")[0] not in sys.stdlib_module_names and n != "labkit"}
        found.setdefault(unit(module), set()).update(known - {unit(module)})
    return found


def test_the_graph_is_read_right():
    text = "import os.path\nfrom ..a import b\nfrom . import c\ndef f():\n    from .d import e\n"
    tree = ast.parse(text)
    assert set(imports(tree, "p.q.m", False, False)) == {"os.path", "p.a.b", "p.q.c"}
    assert set(imports(tree, "p.q", True, True)) == {"os.path", "p.a.b", "p.q.c", "p.q.d.e"}
    assert {"labkit.record", "labkit.check", "labkit.keeper", "labkit.within"} <= set(FILES)
    assert "errors" in units(False)["record"] and "record" in units(False)["check"]


def test_imports_have_no_circle():
    for found in (units(later=False), graph(later=False)):
        try:
            tuple(graphlib.TopologicalSorter({k: v for k, v in found.items() if k != "labkit"}).static_order())
        except graphlib.CycleError as error:
            pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


ONLY = {  # all that a unit may import, also inside functions
    "errors": set(),
    "check": {"errors", "record"},
    "measure": {"errors", "record"},
    "draw": {"errors", "record", "check", "measure", "matplotlib"},
    "wire": set(),
    "programs": {"errors"},
}


@pytest.mark.parametrize("name", ONLY)
def test_the_pure_parts_import_only_what_is_below_them(name):
    assert units(later=True)[name] <= ONLY[name]


def test_the_record_imports_only_errors_and_drawing_when_it_draws():
    assert units(later=False)["record"] == {"errors"}
    assert units(later=True)["record"] == {"errors", "draw"}


def test_the_panel_is_a_view_over_the_verbs():
    inside = {"session", "keeper", "local", "links", "wire", "servers", "within", "worker", "shipping"}
    assert not units(later=True)["panel"] & inside


def test_nothing_uses_pyplot():
    # pyplot keeps every figure alive and picks a backend for the whole process.
    for module, path in FILES.items():
        names = imports(parsed(path), module, path.name == "__init__.py", True)
        assert not any("pyplot" in name or "pylab" in name for name in names), module


@pytest.mark.parametrize("module", ["keeper", "within", "record", "check", "measure"])
def test_what_is_forked_loads_nothing_heavy_and_starts_no_thread(module):
    code = (
        f"import labkit.{module}, sys, os\n"
        "print(len(os.listdir('/proc/self/task')), *{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    threads, *loaded = done.stdout.split()
    assert threads == "1" and "labkit" in loaded
    assert not set(loaded) & set(HEAVY)
