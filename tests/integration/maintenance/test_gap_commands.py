"""`sluice stream continue` on a real catalog and ledger: what it shows, and the checkpoint that it writes. No Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.table import Table
from tests.integration.maintenance.conftest import Place, offset

from sluice.cli.app import main
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.run_values import DesiredState
from sluice.maintenance.gap_continuation import continue_stream, plan_continuation
from sluice.settings import load_settings
from sluice.sources import input_gap
from sluice.sources.iceberg_positions import TableStep
from sluice.sources.input_gap import find_gap

HEADER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'


def ended(words: Sequence[str]) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code if isinstance(end.value.code, int) else 0


def answer(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    assert ended([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def begun(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Path]:
    """A stopped stream that has read two of six snapshots: the ids of the snapshots, and its checkpoint."""
    monkeypatch.setenv("SLUICE_PIPELINES", str(place.folder))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", (place.folder / "ck").as_uri())
    monkeypatch.setenv("COLUMNS", "400")
    ids = place.append("rows", 6)
    root = place.start(offsets=[ids[0]])
    (root / "metadata").write_text('{"id":"a-query"}')
    for log, text in (("offsets", HEADER + json.dumps(offset(ids[1]))), ("commits", "v1\n{}")):
        (root / log).mkdir()
        (root / log / "7").write_text(text)
    set_desired_state(place.ledger, place.stream, DesiredState.STOPPED)
    return ids, root


@pytest.fixture
def cut(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Path]:
    """A stopped stream whose position pyiceberg's expiry has cut off: the ids of the snapshots, and its checkpoint."""
    ids, root = begun(place, monkeypatch)
    place.table("rows").maintenance.expire_snapshots().by_ids(ids[:4]).commit()
    return ids, root


def test_a_dry_run_names_the_missing_snapshots_and_changes_nothing(
    place: Place, cut: tuple[list[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ids, _ = cut

    (plan,) = answer(["stream", "continue", place.stream, "--dry-run"], capsys)["plans"]

    assert [plan["evidence"][name] for name in ("way", "rows_read", "rows_left_out")] == ["exact", 4, 0]
    assert plan["evidence"]["missing_snapshots"] == ids[2:4]
    assert plan["evidence"]["resumes_at"] == [ids[4]]
    generation = find_generation(place.ledger, place.stream)
    assert generation is not None
    assert generation.generation == 1
    assert not (place.folder / "ck" / place.stream / "2").exists()


def test_a_batch_that_was_planned_and_is_not_visible_is_not_done(
    place: Place, cut: tuple[list[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ids, root = cut
    (root / "offsets" / "8").write_text(HEADER + json.dumps(offset(ids[2])))

    (plan,) = answer(["stream", "continue", place.stream, "--dry-run"], capsys)["plans"]

    assert plan["evidence"]["missing_snapshots"] == ids[2:4]
    assert "behind batch 7" in plan["steps"][-2]["sentence"]


def test_a_stream_that_has_published_a_batch_since_its_plan_is_not_continued_before_it(
    place: Place, cut: tuple[list[int], Path]
) -> None:
    """The batch would be read and published a second time."""
    ids, root = cut
    stream = load_declarations(place.folder).stream(place.stream)
    settings = load_settings()
    shown = plan_continuation(place.ledger, place.catalog, stream, settings, leaves_out=False)
    (root / "offsets" / "8").write_text(HEADER + json.dumps(offset(ids[2])))
    (root / "commits" / "8").write_text("v1\n{}")

    with pytest.raises(UsageError, match="is another one than was shown"):
        continue_stream(place.ledger, place.catalog, stream, settings, shown, asked_by="a test")

    generation = find_generation(place.ledger, place.stream)
    assert generation is not None
    assert generation.generation == 1
    assert not (place.folder / "ck" / place.stream / "2").exists()


def test_the_position_may_expire_before_the_snapshots_behind_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, _ = begun(place, monkeypatch)
    place.table("rows").maintenance.expire_snapshots().by_ids(ids[:2]).commit()
    place.table("rows").maintenance.expire_snapshots().by_ids(ids[2:4]).commit()

    (plan,) = answer(["stream", "continue", place.stream, "--dry-run"], capsys)["plans"]

    assert [plan["evidence"][name] for name in ("way", "rows_read", "rows_left_out")] == ["exact", 4, 0]


@pytest.mark.full  # every run names a short one
def test_a_long_gap_is_named_from_a_few_metadata_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = place.append("rows", 40)
    for number in (20, 39):
        place.table("rows").maintenance.expire_snapshots().by_ids(ids[number - 19 : number]).commit()
    table = place.table("rows")
    reads: list[str] = []
    add_listed = input_gap._add_listed

    def counted(found: dict[int, TableStep], of: Table, file: str) -> None:
        reads.append(file)
        add_listed(found, of, file)

    monkeypatch.setattr(input_gap, "_add_listed", counted)

    gap = find_gap(table, name="bronze.rows", position=ids[0])

    assert gap is not None
    assert gap.is_named
    assert [step.snapshot_id for step in gap.missing] == ids[1:39]
    assert len(table.metadata.metadata_log) > 40
    assert len(reads) <= 4


def test_the_new_checkpoint_continues_with_the_files_of_the_gap(
    place: Place, cut: tuple[list[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ids, old = cut
    before = {file: file.read_text() for file in old.rglob("*") if file.is_file()}

    done = answer(["stream", "continue", place.stream, "--yes"], capsys)

    assert done["result"]["generation"] == 2
    new = place.folder / "ck" / place.stream / "2"
    assert {str(file.relative_to(new)) for file in new.rglob("*") if file.is_file()} == {
        "metadata",
        "sources/0/offsets/0",
        "offsets/6",
        "offsets/7",
        "offsets/8",
        "commits/6",
        "commits/7",
    }
    assert (new / "metadata").read_text() == '{"id":"a-query"}'
    ranges = [json.loads((new / "offsets" / number).read_text().splitlines()[2]) for number in ("7", "8")]
    assert ranges == [
        {"version": 1, "snapshot_id": ids[5], "position": 0, "scan_all_files": True},
        {"version": 1, "snapshot_id": ids[5], "position": 4, "scan_all_files": False},
    ]
    assert {file: file.read_text() for file in old.rglob("*") if file.is_file()} == before


def test_nothing_is_continued_with_an_offset_of_an_unknown_table(
    place: Place, cut: tuple[list[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The second input may be cut as well: moving only the first one would skip or repeat its rows."""
    ids, root = cut
    declared = next(place.folder.glob("*.stream.yaml"))
    content = yaml.safe_load(declared.read_text())
    content["inputs"]["more"] = {"stream": {"iceberg": {"table": f"{place.namespace}.more"}}}
    declared.write_text(yaml.safe_dump(content))
    more = yaml.safe_load((place.folder / f"{place.namespace}.rows.table.yaml").read_text())
    more["table"] = f"{place.namespace}.more"
    (place.folder / f"{place.namespace}.more.table.yaml").write_text(yaml.safe_dump(more))
    (place.folder / "copy.sql").write_text("SELECT id FROM rows UNION ALL SELECT id FROM more")
    lines = [json.dumps(offset(ids[1])), json.dumps(offset(12345))]
    (root / "offsets" / "7").write_text(HEADER + "\n".join(lines))

    assert ended(["stream", "continue", place.stream, "--dry-run"]) == 2

    assert "offsets in the checkpoint of which it is known of which table they are" in capsys.readouterr().err


def test_a_stream_that_is_to_run_is_not_continued(place: Place, cut: tuple[list[int], Path]) -> None:
    set_desired_state(place.ledger, place.stream, DesiredState.RUNNING)

    assert ended(["stream", "continue", place.stream, "--yes"]) == 2
    assert not (place.folder / "ck" / place.stream / "2").exists()


def test_a_second_try_finishes_what_a_crash_left(
    place: Place, cut: tuple[list[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = place.folder / "ck" / place.stream / "2" / "offsets" / "7"
    file.parent.mkdir(parents=True)
    file.write_text("half")

    assert answer(["stream", "continue", place.stream, "--yes"], capsys)["result"]["generation"] == 2
    assert file.read_text().startswith("v1\n")


def test_a_folder_with_files_of_another_origin_is_refused(place: Place, cut: tuple[list[int], Path]) -> None:
    foreign = place.folder / "ck" / place.stream / "2" / "offsets" / "99"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("foreign")

    assert ended(["stream", "continue", place.stream, "--yes"]) == 1
    generation = find_generation(place.ledger, place.stream)
    assert generation is not None
    assert generation.generation == 1
