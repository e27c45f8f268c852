"""`docs/settings.md` names every variable, as the code has it."""

from __future__ import annotations

import ast
import re

from tests.architecture.settings_table import render_table
from tests.architecture.source_modules import ROOT, source_modules

DOCUMENT = (ROOT / "docs" / "settings.md").read_text()

VARIABLE = re.compile(r"SLUICE_[A-Z0-9_]+")


def variables_in_the_code() -> set[str]:
    """Every variable that a text in the code is exactly the name of; the nested settings are in the table."""
    return {
        node.value
        for module in source_modules()
        for node in module.nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value)
        if "__" not in node.value
    }


def test_table_of_a_deployment_is_what_the_settings_say() -> None:
    assert render_table() in DOCUMENT, f"docs/settings.md must hold this table:\n{render_table()}"


def test_every_variable_of_the_code_is_documented() -> None:
    documented = {variable for row in DOCUMENT.splitlines() if row[:1] == "|" for variable in VARIABLE.findall(row)}

    assert variables_in_the_code() - documented - {"SLUICE_"} == set()


def test_no_variable_is_documented_that_the_code_does_not_know() -> None:
    documented = {variable for row in DOCUMENT.splitlines() if row[:1] == "|" for variable in VARIABLE.findall(row)}
    of_a_deployment = set(VARIABLE.findall(render_table()))

    assert documented - of_a_deployment - variables_in_the_code() == set()
