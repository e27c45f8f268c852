"""What the inputs have lost of what a rewind has read again: rolled back, expired or removed since. No Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text
from tests.fixtures.drill import first_of
from tests.fixtures.publication import COLUMNS, Workbench
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.maintenance.conftest import offset
from tests.integration.positions.test_adoption_dangers import copier_ends, head, set_back
from tests.integration.positions.test_repair_commands import HEADER, filled, folder
from tests.integration.positions.test_rewind_dangers import refused
from tests.integration.positions.test_rewinds import killed, record, rewound

from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import canonical_offsets
from sluice.settings import load_settings

__all__ = ["copier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A copier that has read a snapshot of its source with each batch: 0 to 2. ends: these snapshots."""

    copier: Copier
    source: Workbench
    ends: Sequence[int]

    def checkpoint(self, *, committed: int) -> None:
        """Write a checkpoint that has committed so many batches."""
        filled(self.copier, batches=committed + 1)
        for number in range(committed + 1):
            (folder(self.copier) / f"offsets/{number}").write_text(HEADER + json.dumps(offset(self.ends[number])))

    def put_back_an_older_checkpoint(self) -> None:
        """It has committed batch 0 alone."""
        self.checkpoint(committed=0)
        for number in (1, 2):
            for path in (f"offsets/{number}", f"commits/{number}", f"state/0/0/{number + 1}.delta"):
                (folder(self.copier) / path).unlink()


@pytest.fixture
def reading(copier: Copier) -> Reading:
    source = replace(copier.bench, output=replace(copier.bench.output, target=f"{copier.stream}.rows"))
    ends = [head(source)]
    record(copier, 0, rows=2, ends={"rows": offset(ends[0])})
    for number, ids in ((1, [3]), (2, [4, 5])):
        source.write_as_another(*ids)
        ends.append(head(source))
        between = {"start_offsets": copier_ends(ends[-2]), "end_offsets": copier_ends(ends[-1])}
        copier.bench.publish(copier.bench.stage(number, ids, **between))
        record(copier, number, rows=len(ids), ends={"rows": offset(ends[-1])})
    found = Reading(copier=copier, source=source, ends=ends)
    found.checkpoint(committed=2)
    return found


def test_rows_that_the_source_has_withdrawn_are_lost_and_not_read_again(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    set_back(reading.source, reading.ends[1])

    code, shown, errors = rewound(reading.copier, capsys, "--dry-run")

    assert (code, "1 rows are read again, 2 are lost, 0 are doubled." in shown) == (0, True), shown + errors
    assert f"Of its input rows: {reading.copier.stream}.rows was rolled back to snapshot {reading.ends[1]}" in shown
    code, shown, _ = rewound(reading.copier, capsys, "--dry-run", "--json")
    (plan,) = json.loads(shown)["plans"]
    assert (plan["evidence"]["rows_read_again"], plan["evidence"]["rows_lost"]) == (1, 2)


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_how_much_is_lost_is_unknown_once_what_was_withdrawn_is_expired(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    set_back(reading.source, reading.ends[1])
    reading.source.target().maintenance.expire_snapshots().by_id(reading.ends[2]).commit()

    _, shown, _ = rewound(reading.copier, capsys, "--dry-run")

    assert "An unknown number of rows are read again, an unknown number are lost" in shown


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_how_much_is_lost_is_unknown_where_nothing_shows_how_far_was_read(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first try has taken the table back, an older copy of the ledger does not know the batches, and the checkpoint
    has lost the newest entry of its log."""
    copier = reading.copier
    set_back(reading.source, reading.ends[1])
    with copier.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM batches WHERE stream = :s AND batch > 0"), {"s": copier.stream})
    killed(copier, CrashPoint.COMMITTED, 2)
    (folder(copier) / "offsets/2").unlink()

    _, shown, errors = rewound(copier, capsys, "--dry-run")

    assert "An unknown number of rows are read again, an unknown number are lost" in shown, shown + errors


@pytest.mark.full  # every run: `test_taken_back.py`
def test_what_is_read_again_counts_also_where_the_checkpoint_stands_there_already(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an older copy, so that no file of it changes."""
    reading.put_back_an_older_checkpoint()

    _, shown, _ = rewound(reading.copier, capsys, "--dry-run")

    assert "3 rows are read again, 0 are lost, 0 are doubled." in shown, shown
    set_back(reading.source, reading.ends[1])
    assert "1 rows are read again, 2 are lost, 0 are doubled." in rewound(reading.copier, capsys, "--dry-run")[1]
    reading.source.write_as_another(6)
    reading.source.expire_all_but_the_newest()
    shown = refused(reading.copier, capsys)
    assert "refused (source_gone): What comes behind batch 0" in shown
    assert "Choose a later batch" in shown


@pytest.mark.full  # every run: a rewind
def test_an_adoption_counts_and_asks_what_is_read_again_also_where_no_repair_is_needed(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    reading.put_back_an_older_checkpoint()
    bench = reading.copier.bench
    bench.clear()
    set_back(bench, bench.target().snapshots()[-3].snapshot_id)
    words = ["table", "adopt", bench.output.target, "--reread", "--dry-run"]

    code, shown, _ = typed(words, capsys)
    assert (code, "3 input rows are read again" in shown, "Forget the batches of" in shown) == (0, True, True), shown

    reading.source.write_as_another(6)
    reading.source.expire_all_but_the_newest()
    code, shown, _ = typed(words, capsys)
    assert (code, "refused (source_gone)" in shown) == (1, True), shown


@pytest.mark.full  # every run: a repair names it
def test_a_batch_behind_which_its_source_was_rolled_back_names_the_one_before(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that works, in this very state."""
    set_back(reading.source, reading.ends[0])

    shown = refused(reading.copier, capsys, to=1)

    assert f"{reading.copier.stream}.rows was rolled back to snapshot {reading.ends[0]}" in shown, shown
    assert f"`sluice stream rewind {reading.copier.stream} --to-batch 0 --dry-run`" in shown
    code, said, errors = rewound(reading.copier, capsys, "--yes")
    assert (code, "0 rows are read again, 3 are lost" in said) == (0, True), said + errors
    assert reading.copier.bench.ids() == [1, 2]


@pytest.mark.full
def test_where_no_earlier_batch_can_be_reached_the_stream_continues_without_going_back(
    reading: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state behind batch 0 is not kept."""
    stream = reading.copier.stream
    set_back(reading.source, reading.ends[0])
    states = folder(reading.copier) / "state/0/0"
    (states / "1.delta").unlink()
    (states / "2.delta").rename(states / "2.snapshot")

    shown = refused(reading.copier, capsys, to=1)

    assert f"`sluice stream continue {stream} --dry-run`" in shown, shown
    code, said, errors = typed(["stream", "continue", stream, "--dry-run"], capsys)
    assert (code, "3 appended rows that were read are withdrawn" in said) == (0, True), said + errors
    assert typed(["stream", "continue", stream, "--yes"], capsys)[0] == 0


@pytest.mark.parametrize("is_ahead", first_of(True, False))
def test_a_repair_names_the_rewind_where_its_source_was_rolled_back(
    reading: Reading, is_ahead: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ahead: its table was set back to batch 1, and batch 2 would be read again as it was planned. Otherwise the state
    behind batch 2 is lost, so that Spark would run it again."""
    copier = reading.copier
    if is_ahead:
        copier.bench.clear()
        set_back(copier.bench, copier.bench.target().snapshots()[-2].snapshot_id)
        code, _, errors = typed(["table", "adopt", copier.bench.output.target, "--reread", "--yes"], capsys)
        assert code == 0, errors
    else:
        (folder(copier) / "state/0/0/3.delta").unlink()
    set_back(reading.source, reading.ends[1])

    code, shown, errors = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)

    assert (code, "refused (source_gone)" in shown) == (1, True), shown + errors
    assert f"`sluice stream rewind {copier.stream} --to-batch 1 --dry-run`" in shown
    code, said, errors = rewound(copier, capsys, "--yes", to=1)
    assert (code, "0 rows are read again, 2 are lost" in said) == (0, True), said + errors
    assert copier.bench.ids() == [1, 2, 3]
    assert "agree: nothing is written." in typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[1]


@pytest.mark.full  # every run: `test_lost_batch_inputs.py`
def test_files_that_are_gone_are_not_read_again(
    copier: Copier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of = of_files(copier, monkeypatch)
    code, shown, errors = rewound(copier, capsys, "--dry-run", to=1)
    assert (code, "1 rows are read again, 0 are lost" in shown) == (0, True), shown + errors
    (folder_of / "1.json").unlink()
    assert rewound(copier, capsys, "--dry-run", to=1)[0] == 0, "it is not read again"
    (folder_of / "2.json").unlink()

    shown = refused(copier, capsys, to=1)

    assert f"of the files that the stream has read, 1 are gone: {(folder_of / '2.json').as_uri()}" in shown


def of_files(copier: Copier, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stream reads files instead, one with each batch; their folder."""
    pipelines, declared = load_settings().pipelines, f"{copier.stream}.stream.yaml"
    found = pipelines / "arrivals"
    found.mkdir()
    monkeypatch.setenv("SLUICE_CONNECTIONS__ARRIVALS__KIND", "files")
    monkeypatch.setenv("SLUICE_CONNECTIONS__ARRIVALS__ROOT", pipelines.as_uri())
    stream = yaml.safe_load((pipelines / declared).read_text())
    files = {"connection": "arrivals", "path": "arrivals", "format": "json", "columns": [*COLUMNS]}
    stream["inputs"] = {"rows": {"stream": {"files": files}}}
    (pipelines / declared).write_text(yaml.safe_dump(stream))
    root = filled(copier, batches=3)
    (root / "sources/0").mkdir(parents=True)
    for number in (0, 1, 2):
        file = found / f"{number}.json"
        file.write_text("{}")
        entry = {"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": number}
        (root / f"sources/0/{number}").write_text(f"v1\n{json.dumps(entry)}")
        (root / f"offsets/{number}").write_text(HEADER + json.dumps({"logOffset": number}))
        ends = {"rows": {"logOffset": number}}
        if number:
            starts = copier.bench.staged()[-1].summary.end_offsets
            staged = copier.bench.stage(number, [number], start_offsets=starts, end_offsets=canonical_offsets(ends))
            copier.bench.publish(staged)
        record(copier, number, ends=ends)
    return found
