"""`sluice demo` as it is typed: rejected options, and the output of a dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.cli.app import main
from sluice.demo.flights_topic import NextReplay, make_plan
from sluice.demo.local_platform import DemoPlan
from sluice.demo.report import DemoStep


def test_a_dry_run_without_a_stack_lists_the_steps_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path / "data"))
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--dry-run"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert output.splitlines()[: len(DemoStep)] == [f"{n}. {step}" for n, step in enumerate(DemoStep, start=1)]
    assert "The stack does not run" in output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", [["--days", "1"], ["--days", "366"], ["--pace", "-1"]])
def test_options_out_of_range_are_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", *words])
    assert ended.value.code == 2


def test_a_plan_counts_what_would_be_sent() -> None:
    plan = make_plan("2013/2013-01-01/2")
    upcoming = NextReplay(plan=plan, missing=plan.records, is_continued=False)
    demo_plan = DemoPlan(is_stack_running=True, upcoming=upcoming)
    assert json.loads(json.dumps(demo_plan.as_json()))["records"]["flight"] == 1_784
    assert "1,820 records of 2013-01-01 to 2013-01-02 would be sent: 1,784 flight" in demo_plan.sentences()[-1]


def test_plan_after_the_whole_year_gives_the_next_step() -> None:
    over = DemoPlan(is_stack_running=True, upcoming=None)
    assert over.as_json()["year_is_over"] is True
    assert "To start again" in over.sentences()[-1]
