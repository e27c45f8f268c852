"""No change of a stream is made without its event: the calls that change one say which event is saved with it."""

from __future__ import annotations

import ast

import pytest
from tests.architecture.source_modules import source_modules

CHANGES = {
    "admit_run": "sluice.ledger.runs",
    "take_over": "sluice.ledger.runs",
    "ask_to_end": "sluice.ledger.runs",
    "set_desired_state": "sluice.ledger.desired_states",
    "suspend": "sluice.ledger.desired_states",
    "resume": "sluice.ledger.desired_states",
    "reset_failure_count": "sluice.ledger.desired_states",
    "open_next_generation": "sluice.ledger.next_generation",
}
"""The functions of the ledger that carry a decision out, with their modules. Each has an argument `event`."""

WITHOUT_EVENTS = ("sluice_spark.testing",)
"""A test bench decides nothing."""


@pytest.mark.parametrize("function", CHANGES)
def test_every_call_says_which_event_is_saved(function: str) -> None:
    calls = [
        (f"{module.place}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for module in source_modules()
        if module.name not in WITHOUT_EVENTS
        and f"{CHANGES[function]}.{function}" in {found.module for found in module.imports()}
        for node in module.nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]

    assert calls, f"{function} is called nowhere: it has another name now"
    assert [place for place, arguments in calls if "event" not in arguments] == []
