"""The project's own Python modules, read with `ast` and never imported: what the tests of this folder look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_ROOMS = {
    "include/sluice": "include",
    "include/pipelines": "include",
    "plugins": "plugins",
    "jobs": "jobs",
    "dags": "dags",
}
"""Every folder of source code, with the folder that its modules are imported from."""


class Moment(Enum):
    """When an import happens."""

    IMPORT = auto()
    """When the module itself is imported."""
    CALL = auto()
    """When a function of it is called."""
    NEVER = auto()
    """Only for the type checker, below `if TYPE_CHECKING`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module.

    Parameters
    ----------
    module: the imported module's full name; for `from a import b` both `a` and `a.b` are yielded.
    line: where it is imported.
    moment: when it is imported.
    """

    module: str
    line: int
    moment: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModule:
    """One file of source code."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The room that the file lies in: sluice, sluice_airflow, sluice_spark, jobs, dags, plugins or pipelines."""
        parts = self.path.relative_to(ROOT).parts
        if parts[0] == "include":
            return parts[1]
        return parts[1] if len(parts) > 2 else parts[0]

    @property
    def place(self) -> str:
        """The path below the project's root, for messages."""
        return self.path.relative_to(ROOT).as_posix()

    @cache  # noqa: B019  # `source_modules` keeps every module to the end
    def imports(self) -> tuple[Import, ...]:
        """Everything that the file imports, anywhere in it."""
        return tuple(_imports(self.tree, package=self._package(), moment=Moment.IMPORT))

    @cache  # noqa: B019  # `source_modules` keeps every module to the end
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the file's syntax tree."""
        return tuple(ast.walk(self.tree))

    def _package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@cache
def source_modules() -> tuple[SourceModule, ...]:
    """Every file of source code, tests excepted."""
    modules = []
    for folder, imported_from in _ROOMS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / imported_from).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules.append(SourceModule(path=path, name=name, tree=ast.parse(path.read_text(), filename=str(path))))
    return tuple(modules)


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of the packages or lies inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _imports(node: ast.AST, *, package: str, moment: Moment) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for name in _imported_names(child, package=package):
                yield Import(module=name, line=child.lineno, moment=moment)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _imports(ast.Module(child.body, []), package=package, moment=Moment.NEVER)
            yield from _imports(ast.Module(child.orelse, []), package=package, moment=moment)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and moment is Moment.IMPORT:
            yield from _imports(child, package=package, moment=Moment.CALL)
        else:
            yield from _imports(child, package=package, moment=moment)


def _imported_names(statement: ast.Import | ast.ImportFrom, *, package: str) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    parents = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
    origin = ".".join([*parents, *([statement.module] if statement.module else [])])
    return [origin, *(f"{origin}.{alias.name}" for alias in statement.names)]
