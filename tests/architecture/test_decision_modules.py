"""Decisions are functions of their arguments: no clock, no file, no network, no database, whatever they import."""

from __future__ import annotations

import ast

import pytest
from tests.architecture.source_modules import Moment, SourceModule, source_modules

DECISION_MODULES = (
    "sluice.checkpoints.checkpoint_layout",
    "sluice.checkpoints.compatibility",
    "sluice.checkpoints.health_decision",
    "sluice.failure_reasons",
    "sluice.failures.classification",
    "sluice.maintenance.maintenance_plan",
    "sluice.maintenance.pin_plan",
    "sluice.operations",
    "sluice.publication.chain",
    "sluice.publication.staged_batch",
    "sluice.supervision.compared_weeks",
    "sluice.supervision.decide_about_pause",
    "sluice.supervision.decide_supervision",
    "sluice.supervision.limits",
    "sluice.supervision.orphaned_runs",
    "sluice.supervision.progress_decision",
    "sluice.supervision.reset_effects",
    "sluice.supervision.restart_policy",
    "sluice.supervision.row_verdicts",
    "sluice.supervision.stream_verdict",
    "sluice.supervision.supervision_values",
    "sluice.supervision.unusual_columns",
    "sluice.supervision.unusual_rows",
    "sluice.work.choose_items",
)
"""Every module that decides. What is not listed here observes, acts or holds values."""

OUTSIDE = (
    "boto3", "botocore", "confluent_kafka", "httpx", "os", "psutil", "psycopg", "pyiceberg", "requests", "shutil",
    "signal", "socket", "sqlalchemy", "subprocess", "threading", "time", "urllib",
)  # fmt: skip
"""What reaches outside the process, or waits."""

CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "monotonic"}


def module_named(name: str) -> SourceModule:
    """One module by its dotted name."""
    return next(module for module in source_modules() if module.name == name)


@pytest.mark.parametrize("name", DECISION_MODULES)
def test_it_reaches_nothing_outside_the_process(name: str) -> None:
    wrong = [
        f"{module_named(name).place}:{found.line} imports {found.module}"
        for found in module_named(name).imports()
        if found.moment is not Moment.NEVER and found.module.partition(".")[0] in OUTSIDE
    ]

    assert wrong == []


@pytest.mark.parametrize("name", DECISION_MODULES)
def test_it_never_reads_the_clock(name: str) -> None:
    module = module_named(name)

    wrong = [
        f"{module.place}:{node.lineno} calls {ast.unparse(node.func)}"
        for node in module.nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLOCKS
    ]

    assert wrong == []
