"""The form of the code: sizes, names and docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.architecture.source_modules import ROOT, SourceModule, is_within, source_modules

LONGEST_MODULE_LINES = 400
LONGEST_FUNCTION_LINES = 60
LONGEST_ENTRY_POINT_LINES = 100

MIGRATIONS = "sluice.ledger.migrations.versions."
"""A migration is one list of statements in the order in which they were once run; it is not taken apart afterwards."""

DRAWERS = re.compile(r"(^|_)(utils?|helpers?|common|managers?|base)$")
"""Names that say nothing about what lies behind them, so that everything ends up there."""

VARIANTS = ("sluice.stack.services", "sluice_airflow.dag_builders", "sluice_spark.sinks", "sluice_spark.sources")
"""Rooms with a module for each variant of one thing: a service, a DAG file, an output, an input."""


def test_modules_are_short() -> None:
    modules = [module.path for module in source_modules() if not module.name.startswith(MIGRATIONS)]
    files = [*modules, *sorted((ROOT / "tests").rglob("*.py"))]

    wrong = [
        f"{path.relative_to(ROOT)} has {length} lines"
        for path in files
        if (length := len(path.read_text().splitlines())) > LONGEST_MODULE_LINES
    ]

    assert wrong == []


def test_entry_points_of_spark_are_short() -> None:
    wrong = [
        f"{module.place} has {length} lines"
        for module in source_modules()
        if module.room == "jobs" and (length := len(module.path.read_text().splitlines())) > LONGEST_ENTRY_POINT_LINES
    ]

    assert wrong == []


def test_functions_are_short() -> None:
    wrong = [
        f"{module.place}:{node.lineno} {node.name} has {length} lines"
        for module in source_modules()
        for node in module.nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not module.name.startswith(MIGRATIONS)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION_LINES
    ]

    assert wrong == []


def test_no_name_is_a_drawer() -> None:
    files = [*(module.path for module in source_modules()), *(ROOT / "tests").rglob("*.py")]

    wrong = [
        str(path.relative_to(ROOT))
        for path in files
        if any(DRAWERS.search(part) for part in path.relative_to(ROOT).with_suffix("").parts)
    ]

    assert wrong == []


def test_base_name_of_a_module_occurs_once() -> None:
    names = Counter(
        module.name.rpartition(".")[2]
        for module in source_modules()
        if module.path.name != "__init__.py"
        and module.room not in ("dags", "pipelines")
        and not is_within(module.name, VARIANTS)
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_everything_public_has_a_docstring() -> None:
    wrong = [f"{module.place}:{line} {name}" for module in source_modules() for line, name in undocumented(module)]

    assert wrong == []


def undocumented(module: SourceModule) -> Iterator[tuple[int, str]]:
    """The line and name of every public thing without a docstring: the module, its classes, functions and methods."""
    if ast.get_docstring(module.tree) is None and (module.tree.body or module.path.name != "__init__.py"):
        yield 1, module.name
    yield from _undocumented_in(module.tree, within="")


def _undocumented_in(scope: ast.Module | ast.ClassDef, *, within: str) -> Iterator[tuple[int, str]]:
    for node in scope.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        is_documented_elsewhere = any(name.endswith((".setter", "overload", "override")) for name in decorators)
        if ast.get_docstring(node) is None and not is_documented_elsewhere:
            yield node.lineno, f"{within}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented_in(node, within=f"{within}{node.name}.")
