"""Whatever of Airflow may change the ledger asks first whether this Airflow owns it (decision 0032)."""

from __future__ import annotations

import ast

from tests.architecture.source_modules import source_modules

SHOWS_ONLY = {
    "sluice_airflow.adapters.control_records": "it records what the person asks who is signed in, and does none of it",
    "sluice_airflow.composition": "it opens the ledger for the others",
    "sluice_airflow.pages.page_state": "a page shows; its requests are those of the person who is signed in",
    "sluice_airflow.triggers.ledger_trigger": "it asks `owns_ledger` before it obeys a mark",
    "sluice_airflow.triggers.work_trigger": "it reads the results of an item",
}
"""The modules that open the ledger without asking, and why that is right."""

CHANGES = ("record_announcement", "suspend_as_marked", "obey_mark")
"""What a trigger does to the ledger; the module that calls it asks `owns_ledger`."""


def test_the_ledger_is_opened_by_its_owner() -> None:
    opening = {
        module.name
        for module in source_modules()
        if module.name.startswith("sluice_airflow.")
        for node in module.nodes()
        if isinstance(node, ast.Call) and _name(node.func) == "open_ledger"
    }
    assert opening == set(SHOWS_ONLY)


def test_a_trigger_that_changes_the_ledger_asks_whether_it_is_its_own() -> None:
    for module in source_modules():
        if module.name.startswith("sluice_airflow.triggers."):
            called = {_name(node.func) for node in module.nodes() if isinstance(node, ast.Call)}
            is_obeying = module.name.endswith(".work_trigger")  # its base asks before `obey_mark`
            assert is_obeying or not called & set(CHANGES) or "owns_ledger" in called, module.name


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
