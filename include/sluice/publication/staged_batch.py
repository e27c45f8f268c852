"""The values of staged delivery: an output and its staging table, and a batch with its offsets and snapshot summary.

A batch carries how its rows become visible, as it was declared when the batch was staged: a declaration may change
between a crash and the next start. A batch that was staged to be appended must not replace what the table holds, and
one that was staged for a table must not go into another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.scalar_types import is_name, is_table_name
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import DeliveryError
from sluice.ledger.batch_findings import RuleResult
from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.stored_keys import (
    END_OFFSETS,
    FIRST_BATCH,
    MARK_PROPERTY_PREFIX,
    OUTPUT,
    PUBLICATION_KEY,
    ROWS,
    RULES,
    RUN_ID,
    SEPARATED,
    STAGED_MODE,
    START_OFFSETS,
    TOKEN,
    WATERMARK,
)


class StagedMode(BaseModel):
    """The part of an output's declaration that decides how a batch is published.

    It is JSON in a snapshot's summary for as long as the batch is staged: fields may be added, never renamed.

    table: `<namespace>.<table>`, the target. The others belong to mode `merge`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    mode: Literal["append", "merge", "complete", "overwrite_partitions"]
    table: str
    keys: tuple[str, ...] = ()
    ordering_column: str | None = Field(None, alias="ordering-column")
    ordering_columns: tuple[str, ...] = Field((), alias="ordering-columns")
    operation_column: str | None = Field(None, alias="operation-column")

    @classmethod
    def of(cls, declared: IcebergOutput) -> StagedMode:
        """The mode of an output as it is declared."""
        return cls(
            mode=declared.mode,
            table=declared.table,
            keys=declared.keys,
            ordering_column=declared.ordering_column,
            ordering_columns=declared.ordering_columns,
            operation_column=declared.operation_column,
        )

    def applied_to(self, declared: IcebergOutput) -> IcebergOutput:
        """A declaration with this mode, whatever it says today."""
        return declared.model_copy(update=self.model_dump())

    def text(self) -> str:
        """The entry of the summary."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)


def read_mode(text: str) -> StagedMode:
    """The mode from the entry of a summary.

    Raises
    ------
    DeliveryError: when the entry cannot be read.
    """
    try:
        return StagedMode.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DeliveryError(
            f"The entry {STAGED_MODE} of a staged batch cannot be read: {problem['msg']} (got {text[:200]!r}).",
            next_step="Use the version of Sluice that staged it, or a later one.",
        ) from error


def canonical_offsets(offsets: Mapping[str, Any]) -> str:
    """The offsets of all inputs as one JSON text, which is equal whenever the offsets are equal.

    Parameters
    ----------
    offsets: by input name, as the sources write them: JSON text (`{"topic":{"0":5}}`), a value, or none before
        the first batch. JSON text is parsed, so that the order of its keys and its spaces do not matter.
    """
    plain = {name: _read(value) for name, value in offsets.items()}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def offsets_digest(canonical: str) -> str:
    """The SHA-256 of canonical offsets, for a mark: a table property must stay small."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:  # the offset of a source that does not write JSON
        return value


STAGING_NAMESPACE = "staging"
"""The namespace of the staging tables of a catalog."""


def staging_name(stream: str, output: str) -> str:
    """The identifier of the staging table of an output. No name holds `__`, so no two outputs share one."""
    return f"{STAGING_NAMESPACE}.{stream}__{output}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """One output of a stream and the table it becomes visible in.

    stream, output: their names; the output of rejected rows is called `quarantine`.
    target: `<namespace>.<table>` in the catalog.

    Raises
    ------
    DeliveryError: when a name has characters that must not reach SQL, a path or a table property.
    """

    stream: str
    output: str
    target: str

    def __post_init__(self) -> None:
        for what, name in (("stream", self.stream), ("output", self.output)):
            if not is_name(name):
                raise DeliveryError(f"The name of the {what} cannot be used for a staging table: got {name!r}.")
        if not is_table_name(self.target):
            raise DeliveryError(
                f"The target of {self.stream}.{self.output} is not <namespace>.<table>: {self.target!r}."
            )

    def __str__(self) -> str:
        return f"{self.stream}.{self.output}"

    @property
    def staging(self) -> str:
        """The identifier of the staging table."""
        return staging_name(self.stream, self.output)

    @property
    def mark_property(self) -> str:
        """The property of the target that holds the mark."""
        return f"{MARK_PROPERTY_PREFIX}{self.stream}.{self.output}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch as Spark has planned it, whatever its outputs. Its key and its offsets are its identity.

    run_id, token: of the run that delivers it.
    start_offsets, end_offsets: from `canonical_offsets`.
    watermark: the event-time watermark of the batch; none without one.
    """

    key: PublicationKey
    run_id: str
    token: int
    start_offsets: str
    end_offsets: str
    watermark: datetime | None = None

    def staged_as(
        self, output: str, mode: StagedMode, *, rows: int | None = None, rules: RuleResult | None = None
    ) -> BatchSummary:
        """The summary under which one of its outputs is staged.

        Parameters
        ----------
        rows: unset when Iceberg's own count is taken. rules: what the rules of the output found; unset without rules.
        """
        return BatchSummary(
            key=self.key,
            output=output,
            run_id=self.run_id,
            token=self.token,
            start_offsets=self.start_offsets,
            end_offsets=self.end_offsets,
            watermark=self.watermark,
            rows=rows,
            mode=mode,
            rules=rules,
        )

    def is_staged_as(self, found: BatchSummary) -> bool:
        """Whether a summary is that of this batch, by key and offsets, whichever run has staged it."""
        offsets = (found.start_offsets, found.end_offsets)
        return found.key == self.key and offsets == (self.start_offsets, self.end_offsets)


def staged_outputs(declaration: StreamDeclaration) -> Iterator[StagedOutput]:
    """The outputs of a stream that go through staging tables, the quarantine last."""
    for name, declared in declaration.outputs.items():
        if declared.iceberg is not None and not declared.iceberg.is_direct:
            yield StagedOutput(stream=declaration.stream, output=name, target=declared.iceberg.table)
    if declaration.quarantine:
        target = declaration.quarantine_table
        yield StagedOutput(stream=declaration.stream, output=QUARANTINE_OUTPUT, target=target)


_ICEBERG_ADDED_ROWS = "added-records"
_RULES = TypeAdapter(RuleResult)
"""JSON in a snapshot's summary for as long as the batch is staged: fields may be added, never renamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary(PlannedBatch):
    """A batch of one output, as recorded in the summaries of its snapshots.

    run_id, token: of the run that staged it. mode: how the batch is published.
    rows: the rows of this output; when the writer leaves them out, reading takes Iceberg's own count.
    rules: what its rules found; unset for an output without rules.
    is_separated: whether it was staged again without the rows that a rule held: they are in its quarantine.
    """

    output: str
    mode: StagedMode
    rows: int | None = None
    rules: RuleResult | None = None
    is_separated: bool = False

    def properties(self) -> dict[str, str]:
        """The entries of a snapshot's summary."""
        entries = {
            PUBLICATION_KEY: str(self.key),
            OUTPUT: self.output,
            RUN_ID: self.run_id,
            TOKEN: str(self.token),
            START_OFFSETS: self.start_offsets,
            END_OFFSETS: self.end_offsets,
            WATERMARK: self.watermark.isoformat() if self.watermark is not None else None,
            ROWS: str(self.rows) if self.rows is not None else None,
            STAGED_MODE: self.mode.text(),
            SEPARATED: "true" if self.is_separated else None,
            RULES: _RULES.dump_json(self.rules, exclude_none=True).decode() if self.rules is not None else None,
        }
        return {name: value for name, value in entries.items() if value is not None}


def read_summary(entries: Mapping[str, str]) -> BatchSummary | None:
    """Read the batch from a snapshot's summary; none when the snapshot does not belong to a batch of a stream.

    Raises
    ------
    DeliveryError: when the summary has a publication key and lacks other entries of a batch.
    """
    key = read_key(entries.get(PUBLICATION_KEY))
    if key is None or TOKEN not in entries:  # the snapshot of another writer, or one that was not staged
        return None
    try:
        watermark = entries.get(WATERMARK)
        return BatchSummary(
            key=key,
            output=entries[OUTPUT],
            run_id=entries[RUN_ID],
            token=int(entries[TOKEN]),
            start_offsets=entries[START_OFFSETS],
            end_offsets=entries[END_OFFSETS],
            watermark=datetime.fromisoformat(watermark) if watermark else None,
            rows=int(entries.get(ROWS) or entries.get(_ICEBERG_ADDED_ROWS) or 0),
            mode=read_mode(entries[STAGED_MODE]),
            rules=_RULES.validate_json(entries[RULES]) if RULES in entries else None,
            is_separated=SEPARATED in entries,
        )
    except (KeyError, ValueError) as error:
        raise DeliveryError(f"The snapshot of batch {key} has a summary that cannot be read: {error!r}.") from error


def read_key(text: str | None) -> PublicationKey | None:
    """Parse the key of a batch, `<stream>:<generation>:<batch>`; none for other text, such as the key of a backfill."""
    parts = text.split(":") if text is not None else []
    if len(parts) != 3 or not all(_is_whole_number(part) for part in parts[1:]):
        return None
    return PublicationKey(stream=parts[0], generation=int(parts[1]), batch=int(parts[2]))


def _is_whole_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def publication_summary(batches: Sequence[BatchSummary]) -> dict[str, str]:
    """The summary of the snapshot that publishes batches: that of the last batch, with the offsets and rows of all.

    Parameters
    ----------
    batches: in order, at least one.
    """
    first, last = batches[0], batches[-1]
    entries = last.properties() | {START_OFFSETS: first.start_offsets}
    entries = {name: value for name, value in entries.items() if name not in (RULES, SEPARATED)}
    entries[ROWS] = str(sum(batch.rows or 0 for batch in batches))
    if len(batches) > 1:
        entries[FIRST_BATCH] = str(first.key.batch)
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """One batch of an output in its staging table.

    summary: the summary of its snapshot.
    snapshot_id, parent_id: its snapshot and the previous one; Spark reads the rows of the batch between the two.
    staged_at: when its snapshot was committed.
    data_files: how many files it added, as Iceberg counted them.
    is_overtaken: whether a newer run had begun before it was staged; such a batch is never published.
    """

    summary: BatchSummary
    snapshot_id: int
    parent_id: int | None
    staged_at: datetime
    data_files: int
    is_overtaken: bool

    @property
    def position(self) -> tuple[int, int]:
        """The order of batches: generation, then number."""
        return (self.summary.key.generation, self.summary.key.batch)


def recovered_observation(batch: Mapping[str, StagedBatch]) -> BatchObservation:
    """The record of a batch whose driver died before it wrote one: what the snapshots of the batch hold of it.

    Parameters
    ----------
    batch: its staged snapshots, by output.
    """
    summaries = [staged.summary for staged in batch.values()]
    rows = {summary.output: summary.rows or 0 for summary in summaries}
    return BatchObservation(
        key=summaries[0].key,
        run_id=summaries[0].run_id,
        started_at=min(staged.staged_at for staged in batch.values()),
        duration_ms=0,
        input_rows=sum(rows.values()),
        published_rows={output: count for output, count in rows.items() if output != QUARANTINE_OUTPUT},
        refused_rows=rows.get(QUARANTINE_OUTPUT, 0),
        watermark=summaries[0].watermark,
        start_offsets=_by_input(summaries[0].start_offsets),
        end_offsets=_by_input(summaries[0].end_offsets),
        rule_results=tuple(summary.rules for summary in summaries if summary.rules is not None),
    )


def _by_input(offsets: str) -> dict[str, Any]:
    """The offsets by input. Spark's log repeats those of a source for each place where the plan reads it, under a name
    that no input has; its report of a batch, from which all other records come, has them once.
    """
    return {name: value for name, value in json.loads(offsets).items() if " " not in name}


def rejected_observation(declaration: StreamDeclaration, batches: Mapping[str, StagedBatch]) -> BatchObservation:
    """The batch as the ledger records it: no output got a row, all rows were rejected."""
    summaries = [batch.summary for batch in batches.values()]
    summary, rows = summaries[0], sum(one.rows or 0 for one in summaries)
    return BatchObservation(
        key=summary.key,
        run_id=summary.run_id,
        started_at=min(batch.staged_at for batch in batches.values()),
        duration_ms=0,
        input_rows=rows,
        published_rows=dict.fromkeys(declaration.outputs, 0),
        refused_rows=rows,
        watermark=summary.watermark,
        start_offsets=json.loads(summary.start_offsets),
        end_offsets=json.loads(summary.end_offsets),
        is_rejected=True,
        rule_results=tuple(one.rules for one in summaries if one.rules is not None),
    )


def is_held(batch: Mapping[str, StagedBatch]) -> bool:
    """Whether a batch breaks a rule that holds it. batch: by output."""
    return any(staged.summary.rules is not None and staged.summary.rules.holds for staged in batch.values())
