"""`sluice batch …` on a real catalog and ledger: what waits is shown, the one that stands in the way is rejected."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from tests.fixtures.drill import first_of
from tests.fixtures.lost_marks import forget_mark
from tests.fixtures.publication import COLUMNS, CatalogPlace, Workbench
from tests.fixtures.stack import Stack

from sluice.cli.app import main
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LeaseLostError, MarkError, RunAlreadyLiveError
from sluice.ledger.batches import recent_batches
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, newest_run, recent_runs, record_end
from sluice.publication.batch_rejection import reject
from sluice.publication.crash_points import CrashPoint
from sluice.publication.mark_moves import reject_batch
from sluice.publication.settle_output import publish_output
from sluice.publication.staged_batch import StagedMode, StagedOutput
from sluice.publication.undeclared_outputs import find_undeclared_outputs
from sluice.tables.catalog import open_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A declared stream of two tables, and what stages for it as its driver does."""

    stream: str
    folder: Path
    ledger: Ledger
    benches: tuple[Workbench, ...]

    def stage(self, batch: int, *ids: int) -> None:
        """Stage a batch for both tables."""
        for bench in self.benches:
            bench.stage(batch, ids)

    def next_driver(self) -> list[list[int]]:
        """What the tables hold when a newer driver has published what it found staged."""
        for bench in self.benches:
            token = max(one.mark().token for one in self.benches) + 1
            bench.begin_as(token)
            bench.as_run(token).recover()
        return [bench.ids() for bench in self.benches]


@dataclass(slots=True)
class AnotherRun:
    """Tries to begin a run of the stream while a command is at a place. refusals: how often it was refused."""

    deployment: Deployment
    at: CrashPoint
    refusals: int = 0

    def begin(self, point: CrashPoint) -> None:
        """Try it when the command is there."""
        if point is self.at:
            with pytest.raises(RunAlreadyLiveError):
                admit_run(
                    self.deployment.ledger,
                    stream=self.deployment.stream,
                    mode="incremental",
                    declaration_digest="d",
                    launched_by="a test",
                )
            self.refusals += 1


@pytest.fixture
def deployment(services_environment: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """Both tables with their marks, nothing staged."""
    settings, namespace = services_environment.settings(), f"s{uuid4().hex[:8]}"
    tables = {"main": f"{namespace}.flights", "other": f"{namespace}.others"}
    content = {
        "stream": namespace,
        "description": "x",
        "owner": "me",
        "mode": "incremental",
        "schedule": {"cron": "@daily"},
        "inputs": {"records": {"stream": {"rate": {}}}},
        "transformation": {"python": "f.py:transform"},
        "outputs": {name: {"iceberg": {"table": table}} for name, table in tables.items()},
    }
    (tmp_path / f"{namespace}.stream.yaml").write_text(yaml.safe_dump(content))
    for table in tables.values():
        declared = {"table": table, "description": "x", "owner": "me", "columns": list(COLUMNS)}
        (tmp_path / f"{table}.table.yaml").write_text(yaml.safe_dump(declared))
    (tmp_path / "f.py").write_text("def transform(records): ...\n")
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    catalog = open_catalog(settings)
    first = Workbench(
        open_catalog=lambda: open_catalog(settings),
        catalog=catalog,
        output=StagedOutput(stream=namespace, output="main", target=tables["main"]),
        place=CatalogPlace(environment=services_environment.environment()),
    )
    second = replace(first, output=replace(first.output, output="other", target=tables["other"]))
    for bench in (first, second):
        bench.declare()
        bench.begin()
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        yield Deployment(stream=namespace, folder=tmp_path, ledger=ledger, benches=(first, second))


@pytest.fixture
def sluice(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Types `sluice batch … --json`; gives the exit code and the answer."""

    def typed(*words: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as leaving:
            main(["batch", *words, "--json"])
        code = leaving.value.code
        captured = capsys.readouterr()
        return code if isinstance(code, int) else 0, json.loads(captured.out or captured.err)

    return typed


def test_what_waits_is_listed_and_shown(deployment: Deployment, sluice: Callable[..., Any]) -> None:
    deployment.stage(0, 1, 2)
    deployment.benches[0].stage(1, [3])

    code, listed = sluice("list", deployment.stream)

    assert code == 0
    assert [(one["key"], one["state"], one["rows"]) for one in listed["batches"]] == [
        (f"{deployment.stream}:1:1", "partly_staged", {"main": 1}),
        (f"{deployment.stream}:1:0", "staged", {"main": 2, "other": 2}),
    ]
    assert sluice("show", deployment.stream, "0")[1]["state"] == "staged"
    code, refusal = sluice("show", deployment.stream, "7")
    assert (code, refusal["error"]) == (2, "UsageError")


def test_the_next_batch_is_rejected_and_the_one_behind_it_published(
    deployment: Deployment, sluice: Callable[..., Any]
) -> None:
    deployment.stage(0, 1, 2)
    deployment.stage(1, 3)

    code, planned = sluice("reject", deployment.stream, "0", "--dry-run")
    (plan,) = planned["plans"]
    assert (code, plan["rows"], plan["evidence"]["rows"]) == (0, 4, {"main": 2, "other": 2})
    code, refusal = sluice("reject", deployment.stream, "0")
    assert (code, refusal["next_step"]) == (2, "See the plan with `--dry-run`, and give `--yes`.")
    assert recent_batches(deployment.ledger, deployment.stream, limit=9) == ()

    done = {"dry_run": False, "verb": "reject-batch", "result": plan["evidence"]}
    assert (plan["evidence"]["found"], plan["at_stake"], len(plan["steps"])) == ("new", "rows", 4)
    assert sluice("reject", deployment.stream, "0", "--yes") == (0, done)
    (again,) = sluice("reject", deployment.stream, "0", "--dry-run")[1]["plans"]
    assert (again["evidence"]["found"], again["at_stake"], len(again["steps"])) == ("complete", "nothing", 1)
    code, answer = sluice("reject", deployment.stream, "0")
    assert (code, answer["result"]) == (0, again["evidence"]), "nothing is left to agree to"

    (recorded,) = recent_batches(deployment.ledger, deployment.stream, limit=9)
    assert (recorded.key.batch, recorded.published_rows, recorded.refused_rows) == (0, {"main": 0, "other": 0}, 4)
    assert recorded.is_rejected
    assert deployment.next_driver() == [[3], [3]]
    listed = sluice("list", deployment.stream)[1]["batches"][-1]
    shown = (listed["key"], listed["state"], listed["explanation"])
    assert shown == (f"{deployment.stream}:1:0", "rejected", "its rows never become visible")


@pytest.mark.parametrize(
    ("point", "occurrence", "state"),
    [
        pytest.param(CrashPoint.RECORDED, 1, "interrupted", marks=pytest.mark.full),
        pytest.param(CrashPoint.CHECKED, 1, "interrupted", marks=pytest.mark.full),
        (CrashPoint.FIRST_OUTPUT_PUBLISHED, 1, "interrupted"),
        pytest.param(CrashPoint.CHECKED, 2, "interrupted", marks=pytest.mark.full),
        pytest.param(CrashPoint.PUBLISHED, 1, "complete", marks=pytest.mark.full),
    ],
    ids=["recorded", "before the first mark", "between the marks", "before the second mark", "after the marks"],
)
def test_a_command_that_is_killed_is_completed_by_typing_it_again(
    deployment: Deployment, sluice: Callable[..., Any], point: CrashPoint, occurrence: int, state: str
) -> None:
    deployment.stage(0, 1, 2)
    deployment.stage(1, 3)
    place = [f"--point={point}", f"--occurrence={occurrence}"]
    command = [sys.executable, "-m", "tests.faults.dying_rejection", f"--stream={deployment.stream}", "--number=0"]
    died = subprocess.run([*command, *place], check=False, capture_output=True)  # noqa: S603  # our own program
    assert died.returncode == -signal.SIGKILL, died.stderr

    code, completed = sluice("reject", deployment.stream, "0")

    assert (code, completed["result"]["found"]) == (0, state)
    (recorded,) = recent_batches(deployment.ledger, deployment.stream, limit=9)
    assert (recorded.key.batch, recorded.published_rows, recorded.refused_rows) == (0, {"main": 0, "other": 0}, 4)
    ends = [run.state for run in recent_runs(deployment.ledger, deployment.stream, limit=2)]
    assert ends == [RunState.FINISHED, RunState.LOST]
    assert deployment.next_driver() == [[3], [3]]


def test_a_run_that_begins_meanwhile_is_refused(deployment: Deployment) -> None:
    deployment.stage(0, 1)
    declaration = load_declarations(deployment.folder, only=deployment.stream).stream(deployment.stream).declaration
    another = AnotherRun(deployment, at=CrashPoint.FIRST_OUTPUT_PUBLISHED)

    catalog = deployment.benches[0].catalog
    reject(catalog, deployment.ledger, declaration, number=0, requested_by="a test", reached=another.begin)

    assert another.refusals == 1
    assert deployment.next_driver() == [[], []]


def test_a_rejection_that_lost_its_lease_moves_no_further_mark(deployment: Deployment) -> None:
    deployment.stage(0, 1)
    declaration = load_declarations(deployment.folder, only=deployment.stream).stream(deployment.stream).declaration

    def lose_lease(point: CrashPoint) -> None:
        run = newest_run(deployment.ledger, deployment.stream)
        if point is CrashPoint.FIRST_OUTPUT_PUBLISHED and run is not None:
            record_end(deployment.ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="taken over")

    with pytest.raises(LeaseLostError, match="another run has taken it over"):
        reject(
            deployment.benches[0].catalog,
            deployment.ledger,
            declaration,
            number=0,
            requested_by="a test",
            reached=lose_lease,
        )

    assert [bench.mark().batch for bench in deployment.benches] == [0, -1]


@pytest.mark.full  # every run: one that was killed there
def test_a_rejection_that_was_cut_short_is_finished(deployment: Deployment, sluice: Callable[..., Any]) -> None:
    """The first output's mark has moved past the batch, the second one's has not."""
    deployment.stage(0, 1)
    deployment.stage(1, 2)
    first = deployment.benches[0]
    reject_batch(first.catalog, first.output, first.staged()[0], token=first.mark().token)

    assert sluice("reject", deployment.stream, "0", "--yes")[0] == 0

    assert deployment.next_driver() == [[2], [2]]


@pytest.mark.parametrize("number", first_of("1", "5"))
def test_only_the_next_batch_can_be_rejected(deployment: Deployment, sluice: Callable[..., Any], number: str) -> None:
    deployment.stage(0, 1)
    deployment.stage(1, 2)

    code, refusal = sluice("reject", deployment.stream, number)

    assert (code, refusal["error"]) == (2, "UsageError")
    assert "staged and not visible are: 0, 1" in refusal["message"]
    assert deployment.next_driver() == [[1, 2], [1, 2]]
    assert "nothing is staged and not visible" in sluice("reject", deployment.stream, number)[1]["message"]


def test_what_one_table_shows_is_not_rejected_in_the_other(deployment: Deployment, sluice: Callable[..., Any]) -> None:
    deployment.stage(0, 1)
    first = deployment.benches[0]
    first.publish(first.staged()[0])

    code, refusal = sluice("reject", deployment.stream, "0")

    assert (code, refusal["error"]) == (2, "UsageError")
    assert deployment.next_driver() == [[1], [1]]


def test_a_live_run_is_stopped_first(deployment: Deployment, sluice: Callable[..., Any]) -> None:
    deployment.stage(0, 1)
    run = admit_run(
        deployment.ledger, stream=deployment.stream, mode="incremental", declaration_digest="d", launched_by="a test"
    )

    code, refusal = sluice("reject", deployment.stream, "0")
    record_end(deployment.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="the test is over")

    assert (code, refusal["error"]) == (1, "RunAlreadyLiveError")
    assert deployment.next_driver() == [[1], [1]]


@pytest.fixture
def former(deployment: Deployment) -> Workbench:
    """An output that the stream no longer declares, with a visible batch and a staged one."""
    first = deployment.benches[0]
    names = StagedOutput(stream=deployment.stream, output="former", target=f"{deployment.stream}.formers")
    bench = replace(first, output=names)
    bench.declare()
    bench.begin()
    mode = StagedMode(mode="append", table=names.target)
    bench.publish(bench.stage(0, [1], mode=mode))
    bench.stage(1, [2, 3], mode=mode)
    return bench


def test_what_waits_for_a_former_output_is_listed_and_published_by_name(
    deployment: Deployment, former: Workbench, sluice: Callable[..., Any]
) -> None:
    deployment.stage(0, 1)
    (listed,) = [one for one in sluice("list", deployment.stream)[1]["batches"] if one["state"] == "undeclared"]
    assert (listed["key"], listed["rows"]) == (f"{deployment.stream}:1:1", {"former": 2})
    assert f"sluice batch publish {deployment.stream} former" in listed["explanation"]

    code, planned = sluice("publish", deployment.stream, "former", "--dry-run")
    (plan,) = planned["plans"]
    assert (code, plan["evidence"]["batches"], plan["rows"]) == (0, [f"{deployment.stream}:1:1"], 2)
    assert (plan["evidence"]["target"], former.ids()) == (former.output.target, [1])
    assert sluice("publish", deployment.stream, "former")[0] == 2, "it asks"
    done = {"dry_run": False, "verb": "publish-output", "result": plan["evidence"]}
    assert sluice("publish", deployment.stream, "former", "--yes") == (0, done)

    assert (former.ids(), former.staged()) == ([1, 2, 3], ())
    (recorded,) = recent_batches(deployment.ledger, deployment.stream, limit=9)
    assert (recorded.key.batch, recorded.published_rows) == (1, {"former": 2})
    code, refusal = sluice("publish", deployment.stream, "former")
    assert (code, refusal["error"]) == (2, "UsageError")
    assert deployment.next_driver() == [[1], [1]], "the declared outputs are not touched"


def test_no_run_begins_while_a_former_output_is_published(deployment: Deployment, former: Workbench) -> None:
    declaration = load_declarations(deployment.folder, only=deployment.stream).stream(deployment.stream).declaration
    another = AnotherRun(deployment, at=CrashPoint.CHECKED)

    publish_output(
        former.catalog, deployment.ledger, declaration, output="former", requested_by="a test", reached=another.begin
    )

    assert (another.refusals, former.ids()) == (1, [1, 2, 3])
    ended = newest_run(deployment.ledger, deployment.stream)
    assert ended is not None
    assert (ended.mode, ended.state, ended.exit_code) == ("settlement", RunState.FINISHED, 0)


def test_what_waits_for_a_former_output_is_abandoned_by_name(
    deployment: Deployment, former: Workbench, sluice: Callable[..., Any]
) -> None:
    assert sluice("abandon", deployment.stream, "former", "--dry-run")[0] == 0
    assert len(former.staged()) == 2
    assert sluice("abandon", deployment.stream, "former")[0] == 2, "it asks"
    assert len(former.staged()) == 2
    code, abandoned = sluice("abandon", deployment.stream, "former", "--yes")
    assert (code, abandoned["result"]["batches"], abandoned["result"]["rows"]) == (0, [f"{deployment.stream}:1:1"], 2)
    assert (former.ids(), former.staged()) == ([1], ())
    assert find_undeclared_outputs(former.catalog, deployment.stream, [])[0].waiting == ()


@pytest.mark.parametrize("verb", first_of("publish", "abandon"))
def test_what_the_next_start_publishes_is_not_settled_by_hand(
    deployment: Deployment, sluice: Callable[..., Any], verb: str
) -> None:
    deployment.stage(0, 1)
    code, refusal = sluice(verb, deployment.stream, "main")
    assert (code, refusal["error"]) == (2, "UsageError")
    assert "its next start publishes what is staged" in refusal["message"]
    code, refusal = sluice(verb, deployment.stream, "unheard_of")
    assert (code, refusal["error"]) == (2, "UsageError")
    assert deployment.next_driver() == [[1], [1]]


def test_a_former_merge_and_a_dropped_target_are_only_abandoned(
    deployment: Deployment, former: Workbench, sluice: Callable[..., Any]
) -> None:
    former.stage(2, [4], mode=StagedMode(mode="merge", table=former.output.target, keys=("id",)))
    code, refusal = sluice("publish", deployment.stream, "former")
    assert (code, refusal["error"]) == (1, "UnpublishableError")
    assert "which only a driver can do" in refusal["message"]
    former.catalog.drop_table(former.output.target)
    code, refusal = sluice("publish", deployment.stream, "former")
    assert f"The table {former.output.target} that {former.output} was staged for is gone" in refusal["message"]
    assert sluice("abandon", deployment.stream, "former", "--yes")[1]["result"]["rows"] == 4
    left = find_undeclared_outputs(former.catalog, deployment.stream, [])
    assert "former" not in [one.output for one in left]


def test_batches_whose_mark_is_lost_for_good_are_abandoned(deployment: Deployment, sluice: Callable[..., Any]) -> None:
    deployment.stage(0, 1)
    main_output = deployment.benches[0]
    main_output.publish(main_output.staged()[0])
    forget_mark(main_output)
    with pytest.raises(MarkError, match="it is unknown which of them are visible"):
        main_output.begin_as(2)

    done = sluice("abandon", deployment.stream, "main", "--yes")[1]
    assert done["result"]["batches"] == [f"{deployment.stream}:1:0"]

    assert main_output.begin_as(2).batch == -1
