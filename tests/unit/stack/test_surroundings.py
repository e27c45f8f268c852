"""Which declarations and variables a stack runs with: those of a terminal, and those that it remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import SettingsError, StackError
from sluice.stack.environment import build_environment
from sluice.stack.stack_plan import StackPlan
from sluice.stack.surroundings import (
    Surroundings,
    SurroundingsDecision,
    decide_surroundings,
    remembered_in,
    surroundings_of,
)

DEMO = Path("/project/include/pipelines")
MINE, OTHER = Path("/mine"), Path("/other")
KAFKA = {"SLUICE_CONNECTIONS__QUAKES__PASSWORD": "s3cret"}
SPARK = {"AIRFLOW_CONN_SPARK_DEFAULT": "spark://yarn"}
PROJECT = Surroundings(pipelines=MINE, variables=KAFKA)


def decide(
    here: Surroundings, remembered: Surroundings | None = PROJECT, *, is_in_use: bool = True, replaces: bool = False
) -> SurroundingsDecision:
    """Decide for a stack whose streams run with a project of its own."""
    return decide_surroundings(here=here, remembered=remembered, demo=DEMO, is_in_use=is_in_use, replaces=replaces)


@pytest.mark.parametrize("here", [Surroundings(), PROJECT, Surroundings(pipelines=MINE), Surroundings(variables=KAFKA)])
def test_what_a_terminal_does_not_name_stays(here: Surroundings) -> None:
    assert decide(here) == SurroundingsDecision(chosen=PROJECT)


def test_a_new_connection_is_added_to_a_running_stack() -> None:
    decision = decide(Surroundings(variables={"AIRFLOW_VAR_TEAM": "x"}))

    assert decision.chosen == Surroundings(pipelines=MINE, variables={**KAFKA, "AIRFLOW_VAR_TEAM": "x"})
    assert decision.sentences == ("AIRFLOW_VAR_TEAM is new.",)


@pytest.mark.parametrize(
    ("here", "sentence"),
    [
        (Surroundings(pipelines=OTHER), "The declarations in /mine are replaced by those in /other."),
        (Surroundings(pipelines=DEMO), f"The declarations in /mine are replaced by those in {DEMO}."),
        (
            Surroundings(variables={"SLUICE_CONNECTIONS__QUAKES__PASSWORD": "t0p"}),
            "SLUICE_CONNECTIONS__QUAKES__PASSWORD gets another value.",
        ),
        (Surroundings(variables=SPARK), "AIRFLOW_CONN_SPARK_DEFAULT gets another value."),
    ],
)
def test_a_change_is_refused_while_the_stack_is_used_and_named_otherwise(here: Surroundings, sentence: str) -> None:
    with pytest.raises(StackError) as refused:
        decide(here)

    assert sentence in refused.value.message
    assert "--declarations-from-here" in refused.value.next_step
    assert "s3cret" not in str(refused.value)
    assert "t0p" not in str(refused.value)
    assert decide(here, is_in_use=False).changed == (sentence,)


def test_the_flag_takes_what_is_here_and_names_what_is_dropped() -> None:
    decision = decide(Surroundings(pipelines=OTHER, variables=SPARK), replaces=True)

    assert decision.chosen == Surroundings(pipelines=OTHER, variables=SPARK)
    assert decision.sentences == (
        "The declarations in /mine are replaced by those in /other.",
        "AIRFLOW_CONN_SPARK_DEFAULT gets another value.",
        "SLUICE_CONNECTIONS__QUAKES__PASSWORD is dropped.",
    )


def test_the_flag_without_a_project_goes_back_to_the_demo() -> None:
    decision = decide(Surroundings(), replaces=True)

    assert decision.chosen == Surroundings()
    assert decision.sentences == (
        f"The declarations in /mine are replaced by those in {DEMO}.",
        "SLUICE_CONNECTIONS__QUAKES__PASSWORD is dropped.",
    )


def test_a_stack_of_the_demo_is_the_same_named_or_not() -> None:
    assert decide(Surroundings(pipelines=DEMO), Surroundings()).sentences == ()


def test_a_first_start_takes_what_is_here() -> None:
    assert decide(PROJECT, None, is_in_use=False) == SurroundingsDecision(chosen=PROJECT)


def test_a_running_stack_that_lost_its_memory_is_not_new() -> None:
    with pytest.raises(StackError, match="the file that says with which declarations and connections is gone"):
        decide(PROJECT, None)

    assert decide(PROJECT, None, replaces=True).chosen == PROJECT


@pytest.mark.parametrize("given", [Surroundings(), PROJECT, Surroundings(variables={**KAFKA, **SPARK})])
def test_the_environment_of_a_stack_remembers(plan: StackPlan, given: Surroundings) -> None:
    environment = build_environment(plan, surroundings=given)

    assert remembered_in(environment) == given


def test_a_shell_that_loaded_the_environment_of_the_stack_names_the_same(plan: StackPlan, tmp_path: Path) -> None:
    mine = Surroundings(pipelines=tmp_path, variables=KAFKA)
    environment = build_environment(plan, surroundings=mine)

    here = surroundings_of(environment, working_folder=Path("/"))

    assert decide(here, remembered_in(environment)).sentences == ()


def test_a_project_is_found_from_any_folder_inside_it(tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text("pipelines: declared\n")
    (tmp_path / "declared" / "flights").mkdir(parents=True)

    inside = surroundings_of({}, working_folder=tmp_path / "declared" / "flights")
    named = surroundings_of({"SLUICE_PIPELINES": "flights"}, working_folder=tmp_path / "declared")
    outside = surroundings_of({"SLUICE_PIPELINES": ""}, working_folder=tmp_path.parent)

    assert inside.pipelines == tmp_path / "declared"
    assert named.pipelines == tmp_path / "declared" / "flights"
    assert outside.pipelines is None


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=f"SLUICE_PIPELINES names {tmp_path}/typo, and there is no such folder"):
        surroundings_of({"SLUICE_PIPELINES": f"{tmp_path}/typo"}, working_folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pipeline: x\n", "pipeline: Extra inputs are not permitted"),
        ("pipelines: [x]\n", "pipelines: Input should be a valid string"),
        ("- x\n", "Input should be a valid dictionary"),
        ("a: b: c\n", "cannot be read"),
        ("pipelines: typo\n", "there is no such folder"),
        ("", "there is no such folder"),
    ],
)
def test_a_wrong_project_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "sluice.yaml").write_text(text)

    with pytest.raises(SettingsError) as refused:
        surroundings_of({}, working_folder=tmp_path)

    assert words in str(refused.value)
    assert f"{tmp_path}/sluice.yaml" in str(refused.value)
