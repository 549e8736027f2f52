"""Who may import what: the method stands on torch alone, and FLARE stays in its own layer."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "fedad_components"
ROOT = Path(__file__).parents[2] / PACKAGE
METHOD = (
    *(f"{PACKAGE}.{name}" for name in ("fedsd", "atsa", "methods")),
    *(f"{PACKAGE}.mil.{name}" for name in ("model", "losses")),
)
METHOD_MAY_USE = {"torch", "torchvision", "numpy", *sys.stdlib_module_names}
COUNTED = tuple(f"{PACKAGE}.mil.{name}" for name in ("counts", "bins", "survival_metrics", "federated_metrics"))
FLARE_LAYER = (f"{PACKAGE}.flare", f"{PACKAGE}.demo.federation")


class Import(NamedTuple):
    name: str
    lazy: bool
    """Inside a function: it runs only when that is called."""


def within(module: str, *parents: str) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node: ast.AST, lazy: bool = False) -> Iterator[Import]:
    """Every import statement below ``node`` except those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            yield Import(child.module or "", lazy)
            yield from (Import(f"{child.module}.{alias.name}", lazy) for alias in child.names)
        elif is_type_checking(child):
            assert isinstance(child, ast.If)
            for statement in child.orelse:
                yield from imports(statement, lazy)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(child, lazy or inside)


def read_package() -> dict[str, set[Import]]:
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = set(imports(ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return modules


MODULES = read_package()


def loads(module: str) -> set[str]:
    """Modules of the package that importing ``module`` imports at once, without the parents' ``__init__``."""
    return {imported.name for imported in MODULES[module] if not imported.lazy and imported.name in MODULES} - {module}


def test_the_package_was_found() -> None:
    assert {f"{PACKAGE}.config", f"{PACKAGE}.atsa"} <= MODULES.keys()


def test_only_the_flare_layer_imports_flare() -> None:
    found = {module for module, names in MODULES.items() if any(within(name.name, "nvflare") for name in names)}
    assert {module for module in found if not within(module, *FLARE_LAYER, f"{PACKAGE}.cli")} == set()


def test_the_command_line_starts_without_flare_or_torch() -> None:
    reached: set[str] = set()
    waiting = [module for module in MODULES if within(module, f"{PACKAGE}.cli")]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [found for found in MODULES if any(within(name, found) for name in loads(module))]
    heavy = {
        (module, name.name)
        for module in reached
        for name in MODULES[module]
        if not name.lazy and within(name.name, "nvflare", "torch", "monai")
    }
    assert heavy == set()


@pytest.mark.parametrize("module", [module for module in MODULES if within(module, *METHOD)])
def test_the_method_needs_only_torch(module: str) -> None:
    outside = {
        imported
        for imported in MODULES[module]
        if imported.name.split(".")[0] not in METHOD_MAY_USE
        and not within(imported.name, *METHOD)
        # A file of weights is read and written with safetensors, which training alone does not need.
        and not (imported.lazy and within(imported.name, "safetensors"))
        and imported.name != PACKAGE
    }
    assert outside == set()


def test_the_method_imports_where_nothing_else_is_installed() -> None:
    names = [module for module in MODULES if within(module, *METHOD)]
    absent = ["pydantic", "nvflare", "monai", "safetensors", "sklearn", "skimage", "typer", "yaml"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); [__import__(name) for name in {names}]"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", [module for module in MODULES if within(module, *COUNTED)])
def test_what_a_server_computes_from_counts_needs_only_numpy_and_scipy(module: str) -> None:
    may_use = {"numpy", "scipy", *sys.stdlib_module_names}
    outside = {
        imported
        for imported in MODULES[module]
        if imported.name.split(".")[0] not in may_use and not within(imported.name, *COUNTED)
    }
    assert outside == set()


def test_no_cycles() -> None:
    TopologicalSorter({module: loads(module) for module in MODULES}).prepare()


def test_nothing_unpickles() -> None:
    pickling = ("pickle", "cloudpickle", "dill", "joblib", "shelve")
    assert {module for module, names in MODULES.items() if any(within(name.name, *pickling) for name in names)} == set()
