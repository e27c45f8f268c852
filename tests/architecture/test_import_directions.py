"""The walls between the rooms: dags → sluice_airflow → sluice ← sluice_spark ← jobs."""

from __future__ import annotations

import ast
import sys

import pytest
from tests.architecture.source_modules import Moment, SourceModule, is_within, source_modules

OWN_PACKAGES = ("sluice", "sluice_airflow", "sluice_spark")

FORBIDDEN = {
    "sluice": ("airflow", "pyspark", "sluice_airflow", "sluice_spark"),
    "sluice_airflow": ("pyspark", "sluice_spark"),
    "sluice_spark": ("airflow", "sluice_airflow"),
    "jobs": ("airflow", "sluice_airflow"),
    "dags": ("pyspark", "sluice_spark"),
    "plugins": ("pyspark", "sluice_spark"),
    "pipelines": ("airflow", "sluice_airflow", "sluice_spark"),
}
"""For each room what none of its modules imports, not even inside a function."""

INSIDE_SLUICE = {
    "sluice.errors": ("sluice.observations",),
    "sluice.declarations": ("sluice.declarations", "sluice.errors"),
    "sluice.observations": ("sluice.observations", "sluice.declarations", "sluice.errors"),
    "sluice.decisions": ("sluice.decisions", "sluice.observations", "sluice.declarations", "sluice.errors"),
    "sluice.prerequisites": ("sluice.prerequisites", "sluice.errors"),
}
"""For rooms inside `sluice`, the only modules of ours that they import."""

DATA_ACCESS = ("boto3", "botocore", "psycopg", "pyiceberg", "requests", "socket", "sqlalchemy", "subprocess", "urllib")
"""What reaches outside the process; a decision is a function of its arguments."""

BOOTSTRAP = ("sluice.prerequisites", "sluice.errors")
"""What the system's own Python runs before a package is installed."""

RUNS_IN_THE_ENVIRONMENT = "sluice.prerequisites.record_class_archive"
"""The one module of that room that the bootstrap starts in `.venv`, where all packages are installed."""


def rooms(*names: str) -> list[SourceModule]:
    """The modules of some rooms of `sluice`, by their dotted names."""
    return [module for module in source_modules() if is_within(module.name, names)]


@pytest.mark.parametrize("room", FORBIDDEN)
def test_room_imports_nothing_that_is_not_its_business(room: str) -> None:
    modules = [module for module in source_modules() if module.room == room]

    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in modules
        for found in module.imports()
        if is_within(found.module, FORBIDDEN[room])
    ]

    assert wrong == []


@pytest.mark.parametrize("room", INSIDE_SLUICE)
def test_inner_room_imports_only_what_it_stands_on(room: str) -> None:
    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in rooms(room)
        for found in module.imports()
        if is_within(found.module, ("sluice",))
        and found.module != "sluice"
        and not is_within(found.module, INSIDE_SLUICE[room])
        and module.name != RUNS_IN_THE_ENVIRONMENT
    ]

    assert wrong == []


def test_command_line_is_imported_by_nobody() -> None:
    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in source_modules()
        for found in module.imports()
        if is_within(found.module, ("sluice.cli",)) and not is_within(module.name, ("sluice.cli",))
    ]

    assert wrong == []


def test_decisions_reach_nothing_outside_the_process() -> None:
    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in rooms("sluice.decisions")
        for found in module.imports()
        if is_within(found.module, DATA_ACCESS)
    ]

    assert wrong == []


def test_decisions_and_observations_never_read_the_clock() -> None:
    wrong = [
        f"{module.place}:{node.lineno} calls {ast.unparse(node.func)}"
        for module in rooms("sluice.decisions")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"now", "utcnow", "today", "time", "time_ns", "monotonic"}
    ]

    assert wrong == []


def test_bootstrap_needs_no_installed_package() -> None:
    modules = [
        module for module in rooms("sluice.stack.bootstrap", *BOOTSTRAP) if module.name != RUNS_IN_THE_ENVIRONMENT
    ]

    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in modules
        for found in module.imports()
        if found.module.partition(".")[0] not in sys.stdlib_module_names
        and not is_within(found.module, BOOTSTRAP)
        and found.moment is not Moment.NEVER
    ]

    assert len(modules) > 5
    assert wrong == []


def test_own_package_names_are_the_three_rooms() -> None:
    top_names = {module.name.partition(".")[0] for module in source_modules() if module.room in OWN_PACKAGES}

    assert top_names == set(OWN_PACKAGES)
