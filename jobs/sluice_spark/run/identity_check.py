"""Compares at a start what a stream reads and writes with what its generation has read and written before.

With `on_data_loss: count` the stream follows a topic that was created again to its first record. The next batch of the
checkpoint is planned without a record: it ends before the first record of the new topic, and Spark runs a planned batch
as it is. No entry of a finished batch changes, so the chain of batches holds.

A batch is finished as soon as all its outputs are staged, or one of them is visible. When the driver was killed before
Spark's commit of such a batch, the commit is written here: Spark would compute the batch again, from records that are
gone, and another batch under its number would not follow the mark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from sluice.checkpoints.checkpoint_layout import (
    HEADER_LINES,
    NO_OFFSET,
    commit_behind,
    metadata_of,
    next_batch_metadata,
)
from sluice.declarations.source_declarations import KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import InputReplacedError, RolledBackError
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.generations import record_identities
from sluice.positions.stream_position import canonical_end
from sluice.publication.mark_moves import plan_output
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import staged_outputs
from sluice.refresh.shadow_bound import input_of
from sluice.settings import KafkaConnection, Settings
from sluice.sources.source_identities import (
    Identities,
    Replaced,
    find_replaced,
    observe_identities,
    since_batch,
)
from sluice.tables.declared_tables import load_table
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.run.run_checkpoint import RunCheckpoint
from sluice_spark.session.checkpoint_metadata import (
    read_checkpoint,
    read_log_text,
    read_planned_offsets,
    write_log_entry,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedIdentities:
    """What a start has compared.

    seen: the ids as they are. followed: the topics that are read from their beginning.
    is_unpublished: whether the generation has published nothing yet, so that these ids are its own whatever it knew.
    """

    seen: Identities
    followed: tuple[Replaced, ...] = ()
    is_unpublished: bool = False


def check_identities(checkpoint: RunCheckpoint, settings: Settings, catalog: Catalog) -> CheckedIdentities:
    """Compare the inputs and targets of a stream with those of its generation. Nothing is kept yet, since what follows
    may refuse the start.

    Raises
    ------
    InputReplacedError, RolledBackError: when one was deleted and created again; nothing was changed.
    LakehouseError: when a source or the catalog does not answer.
    """
    generation, declaration = checkpoint.generation, checkpoint.stream.declaration
    seen = observe_identities(declaration, settings, catalog)
    state = checkpoint.state
    replaced = () if state.newest_planned < 0 else find_replaced(generation.identities, seen)
    is_unpublished = not _has_published(checkpoint, catalog) if replaced else state.newest_planned < 0
    if is_unpublished:
        replaced = tuple(one for one in replaced if not one.is_output)  # no row of this generation was in it
    followed = tuple(one for one in replaced if _is_counted(one, checkpoint))
    if refused := [one for one in replaced if one not in followed]:
        raise _refusal(checkpoint, refused)
    return CheckedIdentities(seen=seen, followed=followed, is_unpublished=is_unpublished)


def keep_identities(
    spark: SparkSession,
    plan: StreamPlan,
    checkpoint: RunCheckpoint,
    checked: CheckedIdentities,
    settings: Settings,
    catalog: Catalog,
) -> RunCheckpoint:
    """Keep the ids in the ledger, after the next batch was planned to end before the first record of each topic that is
    followed. Repeated after a crash, it does the same. A batch that was planned in the old topic and is not finished is
    replaced: its records are gone.

    Returns
    -------
    The checkpoint as it is then.

    Raises
    ------
    LakehouseError: when Kafka does not answer.
    CheckpointError: when the checkpoint cannot be read or written.
    """
    if not checked.followed:
        _keep(checkpoint, checked)
        return checkpoint
    if _is_finished(spark, plan, checkpoint, catalog):
        checkpoint = _with_commit(spark, checkpoint)
    lines = _next_entry(spark, checkpoint)
    moved = moved_offsets(
        lines[HEADER_LINES:],
        plan.places,
        plan.declaration,
        lambda line, source: _at_beginning(line, source, checked.followed, settings),
    )
    lines[HEADER_LINES:] = moved
    write_log_entry(spark, checkpoint.location, "offsets", checkpoint.state.newest_committed + 1, "\n".join(lines))
    _record(checkpoint, checked)
    return replace(checkpoint, state=read_checkpoint(spark, checkpoint.location))


def _is_finished(spark: SparkSession, plan: StreamPlan, checkpoint: RunCheckpoint, catalog: Catalog) -> bool:
    """Whether the batch that is planned and not committed is whole in the staging tables, or visible."""
    number = checkpoint.state.newest_committed + 1
    planned = read_planned_offsets(spark, checkpoint.location, [number])
    ends = {batch: canonical_end(texts, plan.sources) for batch, texts in planned.items()}
    position = replace(checkpoint.position, end_offsets=ends)
    reached = []
    for output in staged_outputs(plan.declaration):
        if load_table(catalog, output.staging) is None or load_target_state(catalog, output).mark is None:
            return False
        found = plan_output(catalog, output, checkpoint=position)
        reached.append(max((found.reached, *(batch.position for batch in found.ready))))
    return number in planned and bool(reached) and min(reached) >= (position.generation, number)


def _with_commit(spark: SparkSession, checkpoint: RunCheckpoint) -> RunCheckpoint:
    """The same checkpoint with its planned batch committed. The watermark stays: what the batch has seen is not known,
    and a lower one drops no row too many."""
    number = checkpoint.state.newest_committed + 1
    metadata = metadata_of(read_log_text(spark, checkpoint.location, "offsets", number))
    write_log_entry(spark, checkpoint.location, "commits", number, commit_behind(metadata))
    _log.info("batch %d was finished by an earlier run; it is committed and not computed again", number)
    return replace(checkpoint, state=read_checkpoint(spark, checkpoint.location))


def _next_entry(spark: SparkSession, checkpoint: RunCheckpoint) -> list[str]:
    """The lines of a next batch that reads nothing. The first batch has none before it: it ends where it is planned."""
    committed = checkpoint.state.newest_committed
    lines = read_log_text(spark, checkpoint.location, "offsets", max(committed, 0)).splitlines()
    if committed >= 0:
        commit = read_log_text(spark, checkpoint.location, "commits", committed)
        lines[HEADER_LINES - 1] = next_batch_metadata(lines[HEADER_LINES - 1], commit)
    return lines


def moved_offsets(
    lines: Sequence[str],
    places: Sequence[str],
    declaration: StreamDeclaration,
    move: Callable[[str, KafkaSource], str],
) -> list[str]:
    """The offsets of an entry with those of topics moved. A place without an offset stays without one.

    Parameters
    ----------
    lines: one for each place of the plan; an entry from before a place was added has fewer. places: the source of each.
    move: gives the offset that an offset of a topic becomes.
    """
    moved = list(lines)
    for number, (line, name) in enumerate(zip(lines, places, strict=False)):
        source = declaration.inputs[input_of(name)].declared_source.source
        if isinstance(source, KafkaSource) and line != NO_OFFSET:
            moved[number] = move(line, source)
    return moved


def _has_published(checkpoint: RunCheckpoint, catalog: Catalog) -> bool:
    """Whether the generation has published a batch: its checkpoint has the commit, or an output has the mark."""
    if checkpoint.state.newest_committed >= 0:
        return True
    for output in staged_outputs(checkpoint.stream.declaration):
        state = load_target_state(catalog, output)
        mark = None if state.mark is None else state.position(output)
        if mark is not None and mark.generation == checkpoint.generation.generation and mark.end_offsets_digest:
            return True
    return False


def _keep(checkpoint: RunCheckpoint, checked: CheckedIdentities) -> None:
    generation, seen = checkpoint.generation, checked.seen
    if seen.items() - generation.identities.items():
        replacing = checked.is_unpublished
        record_identities(checkpoint.ledger, generation.stream, generation.generation, seen, replacing=replacing)


def _at_beginning(line: str, source: KafkaSource, followed: Sequence[Replaced], settings: Settings) -> str:
    """An offset of Kafka's source in which the followed topics stand before their first records."""
    from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

    offsets: dict[str, Mapping[str, int]] = json.loads(line)
    again = [topic for topic in offsets if any(one.is_topic(source.connection, topic) for one in followed)]
    if not again:
        return line
    topics = KafkaTopics(settings.connection(source.connection, KafkaConnection))
    partitions = {topic: parts for topic, parts in topics.partitions_of(source).items() if topic in again}
    for topic, firsts in topics.firsts_of(partitions).items():
        offsets[topic] = {str(partition): first for partition, first in sorted(firsts.items())}
    return json.dumps(offsets, separators=(",", ":"))


def _record(checkpoint: RunCheckpoint, checked: CheckedIdentities) -> None:
    """Say it first: the event is there whenever the ids are known."""
    stream = checkpoint.generation.stream
    phrases = "; ".join(map(str, checked.followed))
    explanation = (
        f"{phrases}. What of the old one was not read is lost, how much is unknown; the new one is read from its first "
        "record, as `on_data_loss: count` says."
    )
    _log.warning("%s", explanation)
    record_event(
        checkpoint.ledger,
        Event(
            name=stream,
            actor=Actor.component("driver"),
            action=EventAction.FOLLOW_INPUT,
            reason="input_replaced",
            explanation=explanation,
            evidence={one.name: {"was": one.known, "is": one.seen} for one in checked.followed},
        ),
    )
    first = str(checkpoint.state.newest_committed + 1)
    kept = {**checked.seen, **{since_batch(one.name): first for one in checked.followed}}
    record_identities(checkpoint.ledger, stream, checkpoint.generation.generation, kept, replacing=True)


def _is_counted(replaced: Replaced, checkpoint: RunCheckpoint) -> bool:
    sources = (one.declared_source.source for one in checkpoint.stream.declaration.inputs.values())
    return any(
        isinstance(source, KafkaSource)
        and source.on_data_loss == "count"
        and any(replaced.is_topic(source.connection, topic) for topic in _topics_named_in(replaced))
        for source in sources
    )


def _topics_named_in(replaced: Replaced) -> tuple[str, ...]:
    word, _, rest = replaced.name.partition(" ")
    return (rest.rpartition(" of ")[0],) if word == "topic" else ()


def _refusal(checkpoint: RunCheckpoint, refused: Sequence[Replaced]) -> InputReplacedError | RolledBackError:
    stream, phrases = checkpoint.generation.stream, "; ".join(map(str, refused))
    reset = f"`sluice stream reset {stream}` reads the inputs again into a new generation"
    if outputs := [one for one in refused if one.is_output]:
        return RolledBackError(
            f"Stream {stream}: {phrases}. The rows of the batches up to {checkpoint.state.newest_committed} are gone "
            "with the old one; nothing is published into the new one.",
            next_step=f"Restore the table if it was not meant; or choose: {reset}, and "
            f"`sluice table adopt {outputs[0].table} --accept` continues without the rows that are gone.",
        )
    counts = " For a topic, `on_data_loss: count` does the same." if any(map(_topics_named_in, refused)) else ""
    return InputReplacedError(
        f"Stream {stream}: {phrases}. The position of the stream is one in the old one.",
        next_step=f"Choose: `sluice stream continue {stream}` continues at the beginning of the new one, and {reset}."
        f"{counts}",
    )
