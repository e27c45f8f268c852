"""`sluice stream rewind --with-readers`: the readers go back first, each by its own plan, or none does. No Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import yaml
from sqlalchemy import text as sql
from tests.fixtures.drill import first_of
from tests.fixtures.publication import COLUMNS, Workbench
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.maintenance.conftest import offset
from tests.integration.positions.test_adoption_dangers import head, set_back
from tests.integration.positions.test_repair_commands import filled
from tests.integration.positions.test_rewinds import killed, reader_of, record, require_rewound, rewound, stage

from sluice.checkpoints.compatibility import SOURCES
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import recent_batches
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import record_fingerprint, record_query_id
from sluice.ledger.run_values import DesiredState
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import StagedOutput, canonical_offsets
from sluice.settings import load_settings

__all__ = ["copier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A copier with batches 0 to 2, and a stream that has read them in two batches, of which the second goes."""

    copier: Copier
    reader: str
    bench: Workbench

    def batches(self, stream: str) -> list[int]:
        """Those that the ledger has, newest first."""
        return [one.key.batch for one in recent_batches(self.copier.ledger, stream, 9)]


@pytest.fixture
def chain(copier: Copier) -> Chain:
    filled(copier, batches=4)
    reader, first = reader_of(copier), head(copier.bench)
    for number in (1, 2, 3):
        staged = stage(copier, number, 10 * number)
        if number < 3:
            copier.bench.publish(staged)
    for number in range(3):
        record(copier, number)
    output = StagedOutput(stream=reader, output="again", target=f"{copier.stream}.again")
    bench = replace(copier.bench, output=output)
    bench.declare(columns=[*COLUMNS, {"name": "at", "type": "timestamptz"}])
    bench.begin()
    root = load_settings().pipelines / "ck" / reader / "1"
    (root / "metadata").write_text(json.dumps({"id": "5b50e120-f7a9-4610-916a-695e361d1bb5"}))
    record_query_id(copier.ledger, reader, 1, "5b50e120-f7a9-4610-916a-695e361d1bb5")
    record_fingerprint(copier.ledger, reader, 1, {SOURCES: "copies"})
    start = "{}"
    for number, (snapshot, ids) in enumerate([(first, [1, 2]), (head(copier.bench), [10, 20])]):
        ends = {"copies": offset(snapshot)}
        bench.publish(bench.stage(number, ids, start_offsets=start, end_offsets=canonical_offsets(ends)))
        start = canonical_offsets(ends)
        header = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
        (root / f"offsets/{number}").write_text(header + json.dumps(ends["copies"], separators=(",", ":")))
        (root / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
        record(copier, number, stream=reader, ends=ends, rows=2)
    set_desired_state(copier.ledger, reader, DesiredState.STOPPED)
    return Chain(copier=copier, reader=reader, bench=bench)


def test_a_reader_goes_back_first_and_no_row_is_left_in_it(chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    copier = chain.copier
    code, shown, errors = rewound(copier, capsys, "--dry-run")
    assert (code, "or together with this: `--with-readers`" in shown) == (1, True), shown + errors
    code, shown, errors = rewound(copier, capsys, "--with-readers", "--dry-run", "--json")
    assert code == 0, shown + errors
    plans = json.loads(shown)["plans"]
    assert [(one["subject"], one["part"], one["rows"]) for one in plans] == [
        (chain.reader, "to batch 1:0", 2),
        (copier.stream, "to batch 1:0", 2),
    ]
    code, _, errors = rewound(copier, capsys, "--with-readers")
    assert (code, "`--yes`" in errors, chain.bench.ids()) == (2, True, [1, 2, 10, 20])

    code, said, errors = rewound(copier, capsys, "--with-readers", "--yes")

    assert code == 0, errors + said
    assert (chain.bench.ids(), chain.bench.mark().batch, chain.batches(chain.reader)) == ([1, 2], 0, [0])
    events = recent_events(copier.ledger, EventSubject.STREAM, chain.reader, limit=1)
    assert [one.action for one in events] == ["rewind"]
    require_rewound(copier)


def test_a_refused_reader_keeps_all_where_they_are(chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    chain.bench.write_as_another(100)

    code, shown, _ = rewound(chain.copier, capsys, "--with-readers", "--dry-run")
    assert (code, "1 rows of theirs would be lost" in shown) == (1, True), shown
    code, _, _ = rewound(chain.copier, capsys, "--with-readers", "--yes")

    assert code != 0
    assert (chain.copier.bench.ids(), chain.bench.ids()) == ([1, 2, 10, 20], [1, 2, 10, 20, 100])


@pytest.mark.full
def test_a_reader_whose_every_batch_goes_is_not_taken_along(chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    root = load_settings().pipelines / "ck" / chain.reader / "1"
    (root / "offsets/0").write_text((root / "offsets/1").read_text())

    code, shown, _ = rewound(chain.copier, capsys, "--with-readers", "--dry-run")

    assert (code, f"`sluice stream reset {chain.reader} --dry-run`" in shown) == (1, True), shown
    assert "--with-readers" not in shown


@pytest.mark.full  # every run: a rewind that was killed (`test_rewinds.py`)
def test_a_reader_that_died_half_way_behind_an_older_checkpoint_is_completed(
    chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tables are back, and the ledger alone knows the batch that had read what goes."""
    root = load_settings().pipelines / "ck" / chain.reader / "1"
    for newer in ("offsets/1", "commits/1"):
        (root / newer).unlink()
    killed(chain.copier, CrashPoint.COMMITTED, 2, stream=chain.reader)
    assert (chain.bench.ids(), (root / "metadata").exists(), chain.batches(chain.reader)) == ([1, 2], False, [1, 0])

    code, _, errors = rewound(chain.copier, capsys, "--with-readers", "--yes")

    assert (code, (root / "metadata").exists(), chain.batches(chain.reader)) == (0, True, [0]), errors
    require_rewound(chain.copier)


@pytest.mark.full
@pytest.mark.parametrize("is_older", [True, False])
def test_a_reader_is_not_asked_to_go_where_its_tables_are_not(
    chain: Chain, capsys: pytest.CaptureFixture[str], *, is_older: bool
) -> None:
    """It died half way to batch 0, and of its later batches only the last one has read what goes now. is_older: whether
    its checkpoint knows none of them."""
    root = load_settings().pipelines / "ck" / chain.reader / "1"
    ends = {"copies": offset(head(chain.copier.bench))}
    record(chain.copier, 2, stream=chain.reader, ends=ends, rows=2)
    with chain.copier.ledger.transaction() as connection:
        was = {"s": chain.reader, "ends": canonical_offsets({"copies": offset(1)})}
        statement = "UPDATE batches SET end_offsets = CAST(:ends AS jsonb) WHERE stream = :s AND batch = 1"
        connection.execute(sql(statement), was)
    header, commit = (root / "offsets/1").read_text().rpartition("\n")[0], (root / "commits/1").read_text()
    (root / "offsets/1").write_text(f"{header}\n{json.dumps(offset(1), separators=(',', ':'))}")
    for path, text in (("offsets/2", f"{header}\n{json.dumps(ends['copies'])}"), ("commits/2", commit)):
        (root / path).write_text(text)
    for path in ("offsets/1", "commits/1", "offsets/2", "commits/2") if is_older else ():
        (root / path).unlink()
    killed(chain.copier, CrashPoint.COMMITTED, 2, stream=chain.reader)

    code, shown, errors = rewound(chain.copier, capsys, "--with-readers", "--dry-run", "--json")

    assert code == 0, errors + shown
    assert [one["part"] for one in json.loads(shown)["plans"]] == ["to batch 1:0", "to batch 1:0"]


@pytest.mark.full  # every run: `test_rewinds.py`
def test_one_that_was_interrupted_behind_a_reader_is_completed(
    chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    copier = chain.copier
    code, _, errors = _alone(chain, capsys)
    assert (code, chain.bench.ids(), copier.bench.ids()) == (0, [1, 2], [1, 2, 10, 20]), errors

    code, _, errors = rewound(copier, capsys, "--with-readers", "--yes")

    assert code == 0, errors
    assert chain.bench.ids() == [1, 2]
    require_rewound(copier)


def test_readers_are_left_or_taken_along(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = rewound(copier, capsys, "--with-readers", "--leave-readers")

    assert (code, "--leave-readers and --with-readers exclude each other" in errors) == (2, True)


@pytest.mark.parametrize("pinned", first_of({}, {"tag": "yearly"}))
def test_a_stream_that_looks_the_table_up_is_named(
    copier: Copier, pinned: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What it has found at each batch is kept nowhere, so it refuses nothing. A fixed state stays what it was."""
    filled(copier, batches=2)
    copier.bench.publish(stage(copier, 1, 10))
    looks_up(copier, pinned)
    assert f"{copier.stream}_joined" in load_declarations(load_settings().pipelines).streams

    code, shown, errors = rewound(copier, capsys, "--dry-run")

    assert code == 0, errors
    sentence = f"{copier.stream}_joined looks {copier.bench.output.target} up as it is at each batch"
    assert (sentence in shown) is (not pinned), shown + errors
    set_back(copier.bench, copier.bench.target().snapshots()[-2].snapshot_id)
    _, shown, errors = typed(["table", "adopt", copier.bench.output.target, "--accept", "--dry-run"], capsys)
    assert (sentence in shown) is (not pinned), shown + errors


def looks_up(copier: Copier, pinned: dict[str, str]) -> None:
    """Declare a stream that joins the table as it is, or in a fixed state."""
    pipelines, name = load_settings().pipelines, f"{copier.stream}_joined"
    declared = yaml.safe_load((pipelines / f"{copier.stream}.stream.yaml").read_text())
    declared |= {"stream": name, "transformation": {"sql": "joined.sql"}}
    declared["inputs"]["known"] = {"static": {"iceberg": {"table": copier.bench.output.target} | pinned}}
    declared["outputs"] = {"joined": {"iceberg": {"table": name.replace("_", ".")}}}
    del declared["backfill"]
    (pipelines / f"{name}.stream.yaml").write_text(yaml.safe_dump(declared))
    (pipelines / "joined.sql").write_text("SELECT rows.* FROM rows JOIN known USING (id)")
    table = yaml.safe_load((pipelines / f"{copier.stream}.copies.table.yaml").read_text())
    table["table"] = name.replace("_", ".")
    (pipelines / f"{copier.stream}.joined.table.yaml").write_text(yaml.safe_dump(table))


def _alone(chain: Chain, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The reader alone, as the first step of the command does it."""
    return rewound(replace(chain.copier, stream=chain.reader), capsys, "--yes")
