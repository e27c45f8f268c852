"""The form of the on-call: which verbs it has, and which of them ask first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG
from typer.testing import CliRunner

from sluice.cli.app import app
from sluice.declarations.load_declarations import load_declarations
from sluice_airflow.dag_builders.stream_control import ControlVerb, stream_control_dag


@pytest.fixture
def dag(tmp_path: Path) -> DAG:
    """The DAG of a deployment without streams."""
    return stream_control_dag(load_declarations(tmp_path))


def test_what_asks_waits_for_a_person_between_the_plan_and_its_carrying_out(dag: DAG) -> None:
    following = {task.task_id: set(task.downstream_task_ids) for task in dag.tasks}
    assert following == {
        "plan": {"carry_out", "approve"},
        "carry_out": set(),
        "approve": {"carry_out_approved"},
        "carry_out_approved": set(),
    }


def test_what_is_not_answered_within_a_day_is_rejected(dag: DAG) -> None:
    approve = dag.get_task("approve")
    assert isinstance(approve, ApprovalOperator)
    assert (approve.response_timeout, approve.defaults) == (timedelta(days=1), ["Reject"])


@pytest.mark.parametrize("verb", ControlVerb)
def test_its_verbs_are_those_of_the_command_line(verb: ControlVerb) -> None:
    of_others = {
        ControlVerb.ADOPT_UNDO: ["table", "adopt", "--undo"],
        ControlVerb.ADOPT_REREAD: ["table", "adopt", "--reread"],
        ControlVerb.ADOPT_ACCEPT: ["table", "adopt", "--accept"],
        ControlVerb.REJECT_BATCH: ["batch", "reject"],
        ControlVerb.RELEASE_BATCH: ["batch", "release"],
        ControlVerb.SEPARATE_BATCH: ["batch", "release", "--without-failing"],
    }
    words = of_others.get(verb, ["stream", verb])
    answer = CliRunner().invoke(app, [*words, "--help"])
    assert answer.exit_code == 0, answer.output
