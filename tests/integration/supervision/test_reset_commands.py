"""`sluice stream reset` as a person types it."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.drivers import end_drivers
from tests.fixtures.stream_commands import Sluice, document

from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import current_generation, find_generation
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, record_end


def delivered(ledger: Ledger) -> None:
    """Let the stream have run, delivered a batch and been stopped."""
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    batch = BatchObservation(
        key=PublicationKey(stream="flights", generation=1, batch=7),
        run_id=run.run_id,
        started_at=datetime.now(tz=UTC),
        duration_ms=1500,
        input_rows=3000,
        published_rows={"rows": 2990},
        end_offsets={"records": {"flights": {"0": 3000}}},
    )
    record_batch(ledger, batch)
    record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="finished")
    set_desired_state(ledger, "flights", DesiredState.STOPPED)


def test_a_reset_shows_what_is_left_behind_and_what_is_read_and_published_again(sluice: Sluice, ledger: Ledger) -> None:
    delivered(ledger)
    exit_code, output, _ = sluice("stream", "reset", "flights", "--dry-run")
    assert exit_code == 0
    steps = [line.partition(". ")[2] for line in output.splitlines()[1:-1]]
    assert steps[0] == (
        'Leave generation 1, its offsets. Its newest batch is 7, which ends at {"records": {"flights": {"0": '
        "3000}}}; recorded batches stay recorded. Its checkpoint file:///checkpoints/flights/1 is not there any more."
    )
    assert steps[1].startswith("Staged batches are never published; how many they are is unknown: ")
    assert steps[2:] == [
        "Open generation 2 with the empty checkpoint file:///checkpoints/flights/2; its batches are counted from 0.",
        "The next start reads from input records: every record that its topics still contain.",
        "Output rows, table bronze.flights, append: what is read again is published again: earlier rows are there "
        "twice.",
        "flights stays stopped until it is started.",
    ]
    (plan,) = document(sluice("stream", "reset", "flights", "--dry-run", "--json"))["plans"]
    assert [plan["evidence"][name] for name in ("leaves", "opens", "newest_batch")] == [1, 2, 7]
    assert plan["evidence"]["end_offsets"] == {"records": {"flights": {"0": 3000}}}
    generation = find_generation(ledger, "flights")
    assert generation is not None
    assert generation.generation == 1


def test_a_reset_asks_and_does_nothing_without_a_yes(
    sluice: Sluice, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered(ledger)
    exit_code, output, errors = sluice("stream", "reset", "flights")
    assert (exit_code, output) == (2, "")
    assert "there is no terminal to answer on; nothing was changed.\nSee the plan with `--dry-run`" in errors
    for answer, expected in (("n", 1), ("y", 0)):
        with monkeypatch.context() as at_a_terminal:
            at_a_terminal.setattr(sys, "stdin", Terminal(f"{answer}\n"))
            exit_code, output, errors = sluice("stream", "reset", "flights")
        assert exit_code == expected
        assert "Leave generation 1, " in errors
        assert ("Nothing was changed." in errors) == (answer == "n")
    assert output.strip() == "Generation 2 of flights is open: `sluice stream start flights` reads from the beginning."
    assert "generation 2, opened by command line: " in sluice("stream", "show", "flights")[1]


def test_a_reset_is_refused_while_a_driver_lives_or_the_stream_is_to_run(sluice: Sluice, ledger: Ledger) -> None:
    sluice("stream", "start", "flights")
    exit_code, _, errors = sluice("stream", "reset", "flights", "--yes")
    assert exit_code == 1
    assert "or stop it first: `sluice stream stop flights`" in errors
    end_drivers(ledger)
    exit_code, _, errors = sluice("stream", "reset", "flights", "--yes")
    assert exit_code == 2
    assert "flights is to run" in errors
    sluice("stream", "stop", "flights")
    assert "has never been started" in sluice("stream", "reset", "flights", "--yes")[2], "its driver opened nothing"
    delivered(ledger)
    answer = document(sluice("stream", "reset", "flights", "--yes", "--json"))
    assert (answer["verb"], answer["result"]["generation"]) == ("reset", 2)
    exit_code, output, _ = sluice("stream", "status", "flights")
    assert exit_code == 0
    assert "Kafka at 127.0.0.1:1 does not answer" in output


def test_a_reset_is_refused_where_another_checkpoint_lies(
    sluice: Sluice, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered(ledger)
    metadata = tmp_path / "checkpoints" / "flights" / "2" / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text('{"id": "anothers"}')
    monkeypatch.setenv("SLUICE_CHECKPOINTS", f"file://{tmp_path}/checkpoints")
    exit_code, _, errors = sluice("stream", "reset", "flights", "--yes")
    assert exit_code == 1
    assert "flights/2, the folder of the new checkpoint, contains metadata already" in errors


def test_a_reset_says_when_the_folder_of_the_new_checkpoint_was_not_looked_at(
    sluice: Sluice, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered(ledger)
    monkeypatch.setenv("SLUICE_CHECKPOINTS", "hdfs://namenode:8020/checkpoints")
    exit_code, output, _ = sluice("stream", "reset", "flights", "--dry-run")
    assert exit_code == 0
    assert "Only Spark can read that storage: check first that the folder is empty." in output


class Terminal(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True
