"""What a repair or a rewind writes into a checkpoint and has read again, in sentences for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.checkpoints.checkpoint_layout import METADATA
from sluice.positions.repair_decision import CheckpointRepair
from sluice.positions.stream_position import StreamPosition


def sentences_of_files(seen: StreamPosition, written: CheckpointRepair) -> Iterator[str]:
    """What is put into a checkpoint, and what is removed from it."""
    if (copy := written.restores) is not None:
        yield (
            f"Put the copy of {copy.copied_at:%Y-%m-%d %H:%M:%S} UTC, with {len(copy.files)} files behind batch "
            f"{copy.committed}, in the place of what is in {seen.checkpoint}."
        )
    removed = [path for path in written.removes if path != METADATA]
    if removed:
        yield f"Remove from {seen.checkpoint}: {_named(removed)}."
    yield f"Write into it: {_named(list(written.writes))}. It stands behind batch {written.stands_at} then."
    if written.replays:
        yield (
            f"The next start runs the batches {written.replays[0]} to {written.replays[-1]} again, one after another "
            "to the end that each had, for the state alone: their rows are in the tables and do not appear twice."
        )
    if written.runs_again is not None:
        yield f"Spark runs batch {written.runs_again} again; its rows are in the tables and do not appear twice."


def sentence_of_forgotten(recorded: int) -> str:
    """How many later batches the ledger forgets."""
    return (
        f"Forget {recorded:,} later batches in the ledger, with what their rules found; the event keeps their number."
    )


def sentence_of_rows(read_again: int | None, lost: int | None = 0, *, doubled: int | None = 0) -> str:
    """How many rows are read again, lost and doubled. Unset: unknown."""
    again, gone, twice = (f"{one:,}" if one is not None else "an unknown number" for one in (read_again, lost, doubled))
    rows = again if read_again is not None else f"{again[0].upper()}{again[1:]} of"
    return f"{rows} rows are read again, {gone} are lost, {twice} are doubled."


def sentences_of_repetition(stream: str, repeating: Sequence[str], read_again: int | None) -> Iterator[str]:
    """That outputs get rows a second time. read_again: how many rows are; unset when that is unknown."""
    if repeating and read_again != 0:
        yield (
            f"What {stream} reads again comes a second time to {', '.join(repeating)}: no mark shows what is there, "
            "and no batch is known there by its number."
        )


def _named(paths: list[str]) -> str:
    shown = ", ".join(paths[:6])
    return shown if len(paths) <= 6 else f"{shown} and {len(paths) - 6} more files"
