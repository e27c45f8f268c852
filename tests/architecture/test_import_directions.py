"""The walls between the rooms: dags → sluice_airflow → sluice ← sluice_spark ← jobs, and between the rooms inside."""

from __future__ import annotations

import ast
import sys

import pytest
from tests.architecture.source_modules import ROOT, Moment, SourceModule, is_within, source_modules

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
"""For each package what none of its modules imports, not even inside a function."""

_VALUES = (
    "sluice.messages",
    "sluice.errors",
    "sluice.failure_reasons",
    "sluice.processes",
    "sluice.stored_keys",
    "sluice.operations",
    "sluice.declarations",
    "sluice.ledger",
)
_SPARK = "sluice_spark"

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "sluice.messages": (),
    "sluice.failure_reasons": (),
    "sluice.errors": ("sluice.messages", "sluice.failure_reasons"),
    "sluice.processes": (),
    "sluice.stored_keys": (),
    "sluice.operations": ("sluice.errors",),
    "sluice.settings": ("sluice.messages", "sluice.errors", "sluice.processes"),
    "sluice.project_file": ("sluice.errors",),
    "sluice.declarations": ("sluice.messages", "sluice.errors", "sluice.stored_keys"),
    "sluice.setup": ("sluice.errors",),
    "sluice.ledger": (
        "sluice.messages",
        "sluice.errors",
        "sluice.failure_reasons",
        "sluice.processes",
        "sluice.stored_keys",
        "sluice.settings",
    ),
    "sluice.failures": ("sluice.messages", "sluice.errors", "sluice.failure_reasons", "sluice.ledger"),
    "sluice.tables": ("sluice.settings", *_VALUES),
    "sluice.checkpoints": ("sluice.settings", *_VALUES),
    "sluice.record_values": ("sluice.errors", "sluice.settings", "sluice.declarations"),
    "sluice.sources": ("sluice.settings", *_VALUES, "sluice.tables", "sluice.checkpoints", "sluice.record_values"),
    "sluice.publication": (*_VALUES, "sluice.tables"),
    "sluice.backfill": (
        "sluice.settings",
        *_VALUES,
        "sluice.tables",
        "sluice.publication",
        "sluice.checkpoints",
        "sluice.sources",
        "sluice.record_values",
    ),
    "sluice.layout": (*_VALUES, "sluice.tables", "sluice.backfill"),
    "sluice.launching": ("sluice.settings", *_VALUES, "sluice.failures", "sluice.setup"),
    "sluice.work": ("sluice.settings", *_VALUES, "sluice.backfill", "sluice.launching"),
    "sluice.quality": ("sluice.messages", "sluice.declarations", "sluice.ledger", "sluice.tables"),
    "sluice.supervision": (
        "sluice.settings",
        *_VALUES,
        "sluice.failures",
        "sluice.tables",
        "sluice.checkpoints",
        "sluice.sources",
        "sluice.publication",
        "sluice.launching",
    ),
    "sluice.positions": (
        "sluice.settings",
        *_VALUES,
        "sluice.tables",
        "sluice.checkpoints",
        "sluice.sources",
        "sluice.publication",
        "sluice.supervision",
    ),
    "sluice.maintenance": (
        "sluice.settings",
        *_VALUES,
        "sluice.tables",
        "sluice.layout",
        "sluice.checkpoints",
        "sluice.sources",
        "sluice.publication",
        "sluice.supervision",
    ),
    "sluice.refresh": (
        "sluice.settings",
        *_VALUES,
        "sluice.tables",
        "sluice.checkpoints",
        "sluice.sources",
        "sluice.publication",
        "sluice.backfill",
        "sluice.supervision",
        "sluice.maintenance",
    ),
    "sluice.leftovers": (
        "sluice.settings",
        *_VALUES,
        "sluice.tables",
        "sluice.checkpoints",
        "sluice.publication",
        "sluice.backfill",
    ),
    "sluice.erasure": (
        "sluice.settings",
        *_VALUES,
        "sluice.tables",
        "sluice.sources",
        "sluice.publication",
        "sluice.maintenance",
    ),
    "sluice.pages": (
        "sluice.settings",
        *_VALUES,
        "sluice.failures",
        "sluice.messages",
        "sluice.tables",
        "sluice.checkpoints",
        "sluice.record_values",
        "sluice.publication",
        "sluice.backfill",
        "sluice.launching",
        "sluice.supervision",
        "sluice.positions",
        "sluice.maintenance",
        "sluice.quality",
    ),
    "sluice.stack": (
        "sluice.errors",
        "sluice.processes",
        "sluice.settings",
        "sluice.project_file",
        "sluice.ledger",
        "sluice.setup",
    ),
    "sluice.demo": ("sluice",),
    "sluice.cli": ("sluice",),
    "sluice_spark.session": ("sluice",),
    "sluice_spark.sources": ("sluice", "sluice_spark.session"),
    "sluice_spark.sinks": ("sluice", "sluice_spark.session"),
    "sluice_spark.query": ("sluice", "sluice_spark.session", "sluice_spark.sources", "sluice_spark.sinks"),
    "sluice_spark.delivery": ("sluice", "sluice_spark.session", "sluice_spark.sinks", "sluice_spark.query"),
    "sluice_spark.run": (
        "sluice",
        "sluice_spark.session",
        "sluice_spark.sources",
        "sluice_spark.sinks",
        "sluice_spark.query",
        "sluice_spark.delivery",
    ),
    "sluice_spark.backfill": (
        "sluice",
        "sluice_spark.session",
        "sluice_spark.sources",
        "sluice_spark.sinks",
        "sluice_spark.query",
        "sluice_spark.run",
    ),
    "sluice_spark.refresh": (
        "sluice",
        "sluice_spark.session",
        "sluice_spark.query",
        "sluice_spark.delivery",
        "sluice_spark.run",
    ),
    "sluice_spark.maintenance": ("sluice", "sluice_spark.session"),
    "sluice_spark.quality": ("sluice", "sluice_spark.session"),
    "sluice_spark.work": (
        "sluice",
        "sluice_spark.session",
        "sluice_spark.run",
        "sluice_spark.backfill",
        "sluice_spark.refresh",
        "sluice_spark.maintenance",
        "sluice_spark.quality",
    ),
    "sluice_spark.testing": ("sluice", "sluice_spark"),
    "sluice_airflow.executors": (),
    "sluice_airflow.timetables": (),
    "sluice_airflow.adapters": ("sluice",),
    "sluice_airflow.composition": ("sluice", "sluice_airflow.adapters"),
    "sluice_airflow.triggers": ("sluice", "sluice_airflow.composition"),
    "sluice_airflow.pages": ("sluice", "sluice_airflow.composition"),
    "sluice_airflow.tasks": (
        "sluice",
        "sluice_airflow.adapters",
        "sluice_airflow.composition",
        "sluice_airflow.pages",
        "sluice_airflow.triggers",
    ),
    "sluice_airflow.operators": (
        "sluice",
        "sluice_airflow.composition",
        "sluice_airflow.pages",
        "sluice_airflow.tasks",
        "sluice_airflow.triggers",
    ),
    "sluice_airflow.dag_builders": (
        "sluice",
        "sluice_airflow.composition",
        "sluice_airflow.pages",
        "sluice_airflow.tasks",
        "sluice_airflow.triggers",
        "sluice_airflow.operators",
        "sluice_airflow.timetables",
    ),
}
"""For each room the other rooms that it may import. A room may be listed only below those that import it, so that
there is no circle; `test_rooms_are_listed_from_the_ground_up` keeps that."""

NOT_FOR_OTHER_ROOMS = ("sluice.cli", "sluice.demo")
"""The ends of the house: they import what they need and are imported by nothing else."""

USED_BY_THE_COMMAND_LINE = ("sluice.cli",)

BOOTSTRAP = ("sluice.setup", "sluice.errors", "sluice.failure_reasons", "sluice.messages")
"""What the system's own Python runs before a package is installed."""


def rooms(*names: str) -> list[SourceModule]:
    """The modules of some rooms, by their dotted names."""
    return [module for module in source_modules() if is_within(module.name, names)]


def room_of(module: str) -> str:
    """The room that a module of ours lies in, by its dotted name."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("package", FORBIDDEN)
def test_package_imports_nothing_that_is_not_its_business(package: str) -> None:
    modules = [module for module in source_modules() if module.room == package]

    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in modules
        for found in module.imports()
        if is_within(found.module, FORBIDDEN[package])
    ]

    assert wrong == []


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_room_imports_only_rooms_below_it(room: str) -> None:
    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in rooms(room)
        for found in module.imports()
        if is_within(found.module, OWN_PACKAGES)
        and found.module not in OWN_PACKAGES
        and not is_within(found.module, (room, *MAY_IMPORT[room]))
    ]

    assert wrong == []


def test_every_room_has_an_import_rule() -> None:
    found = {room_of(module.name) for module in source_modules() if module.name.partition(".")[0] in OWN_PACKAGES}

    assert found - set(OWN_PACKAGES) == set(MAY_IMPORT)


def test_rooms_are_listed_from_the_ground_up() -> None:
    listed = list(MAY_IMPORT)

    wrong = [
        f"{room} is listed above {below}, which it may import"
        for room, allowed in MAY_IMPORT.items()
        for below in allowed
        if below in MAY_IMPORT and listed.index(below) >= listed.index(room)
    ]

    assert wrong == []


def test_what_is_private_to_a_module_is_not_imported_elsewhere() -> None:
    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in source_modules()
        for found in module.imports()
        if is_within(found.module, OWN_PACKAGES)
        and any(part.startswith("_") and not part.startswith("__") for part in found.module.split("."))
    ]

    assert wrong == []


PRIVATE_PARTS_OF_PYICEBERG = {
    "sluice.publication.pyiceberg_committer": "pyiceberg.table.update.snapshot",  # behind a port (decision 0033)
    "sluice.publication.file_preparation": "pyiceberg.io.pyarrow",
    "sluice.layout.pruning": "pyiceberg.expressions.visitors",  # compared with a scan in tests/unit/layout
}
"""The modules that use what is private to pyiceberg, each with where it takes it from."""


def test_what_is_private_to_pyiceberg_is_used_in_named_modules_only() -> None:
    found = {
        (module.name, used.module.rpartition(".")[0])
        for module in source_modules()
        for used in module.imports()
        if is_within(used.module, ("pyiceberg",)) and used.module.rpartition(".")[2].startswith("_")
    }

    assert found == set(PRIVATE_PARTS_OF_PYICEBERG.items())


def test_command_line_and_demo_are_imported_by_no_other_room() -> None:
    wrong = [
        f"{module.place}:{found.line} imports {found.module}"
        for module in source_modules()
        for found in module.imports()
        if is_within(found.module, NOT_FOR_OTHER_ROOMS)
        and not is_within(module.name, (*USED_BY_THE_COMMAND_LINE, room_of(found.module)))
    ]

    assert wrong == []


def test_bootstrap_needs_no_installed_package() -> None:
    modules = rooms("sluice.stack.bootstrap", *BOOTSTRAP)

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


@pytest.mark.parametrize("conftest", ["tests/conftest.py", "tests/unit/conftest.py"])
def test_tests_of_single_parts_import_nothing_that_other_rings_need(conftest: str) -> None:
    """All of it took 3 s of a processor, before the first test of a single file."""
    found = SourceModule(path=ROOT / conftest, name="conftest", tree=ast.parse((ROOT / conftest).read_text())).imports()

    others = {one.module.partition(".")[0] for one in found if one.module.partition(".")[0] != "tests"}
    assert others - sys.stdlib_module_names <= {"hypothesis", "pytest"}


def test_own_package_names_are_the_three_packages() -> None:
    top_names = {module.name.partition(".")[0] for module in source_modules() if module.room in OWN_PACKAGES}

    assert top_names == set(OWN_PACKAGES)
