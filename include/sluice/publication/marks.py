"""The mark: how far a stream's output is published, kept as a property of the target table.

A property and not history, so it survives the expiry of snapshots, compaction, and any accident of a checkpoint. It
never moves without main moving in the same commit: only then does the compare-and-swap on main protect it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyiceberg.table import Table

from sluice.errors import MarkError
from sluice.publication.staged_output import MARK_PROPERTY_PREFIX, StagedOutput

BEFORE_THE_FIRST_BATCH = -1
"""The batch number of an opening mark of a generation that starts with batch 0."""


class Mark(BaseModel):
    """How far an output is published.

    Stored as JSON in a table property for as long as the table lives: fields may be added, never renamed.

    generation, batch: the newest published batch; the next one to publish is `batch + 1` of the same generation.
    token: the highest fencing token that was ever admitted; a lower one is refused for ever.
    end_offsets_digest: `offsets_digest` of the end offsets of that batch; none when the generation opened without
        knowing where its first batch begins.
    snapshot_id, sequence_number: the snapshot of the target that set this mark.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    generation: int = Field(ge=1)
    batch: int = Field(ge=BEFORE_THE_FIRST_BATCH)
    token: int = Field(ge=0)
    end_offsets_digest: str | None = Field(None, alias="end-offsets-digest")
    snapshot_id: int = Field(alias="snapshot-id")
    sequence_number: int = Field(alias="sequence-number")

    @property
    def position(self) -> tuple[int, int]:
        """What marks are ordered by: generation, then batch."""
        return (self.generation, self.batch)

    @property
    def at(self) -> MarkPosition:
        """Where it stands, apart from the snapshot that set it."""
        return MarkPosition(
            generation=self.generation,
            batch=self.batch,
            token=self.token,
            end_offsets_digest=self.end_offsets_digest,
        )

    def text(self) -> str:
        """The value of the table property."""
        return self.model_dump_json(by_alias=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPosition:
    """Where a mark is to be set; the snapshot that carries it there is known only when it is committed."""

    generation: int
    batch: int
    token: int
    end_offsets_digest: str | None

    def at(self, *, snapshot_id: int, sequence_number: int) -> Mark:
        """The mark as it stands after the commit of this snapshot."""
        return Mark(
            generation=self.generation,
            batch=self.batch,
            token=self.token,
            end_offsets_digest=self.end_offsets_digest,
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
        )


def marked_outputs(table: Table) -> tuple[StagedOutput, ...]:
    """Every output that has a mark on a loaded target, in the order of their names."""
    names = sorted(name for name in table.properties if name.startswith(MARK_PROPERTY_PREFIX))
    pairs = [name.removeprefix(MARK_PROPERTY_PREFIX).partition(".") for name in names]
    return tuple(
        StagedOutput(stream=stream, output=output, target=".".join(table.name())) for stream, _, output in pairs
    )


def read_mark(table: Table, *, stream: str, output: str) -> Mark | None:
    """The mark of a stream's output on a loaded target; none when the stream never opened a generation there.

    Raises
    ------
    MarkError: when the property holds something else, because somebody wrote over it.
    """
    name = StagedOutput(stream=stream, output=output, target=".".join(table.name())).mark_property
    text = table.properties.get(name)
    if text is None:
        return None
    try:
        return Mark.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        raise MarkError(
            f"The property {name} of {'.'.join(table.name())} is not a mark: {problem['msg']} (got {text[:200]!r}).",
            next_step="Set it back to its last value; the metadata log of the table has it.",
        ) from error
