"""Observes the lag of a stream at its sources, independently of its driver: a driver that hangs cannot hide its lag.

The unread files of a Delta table are counted in its log; Spark is not asked. Source of the log's form:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.declarations.source_declarations import (
    DeltaSource,
    FilesSource,
    IcebergSource,
    KafkaSource,
    KinesisSource,
    RateSource,
)
from sluice.errors import CheckpointError, LakehouseError, SourceRefusedError
from sluice.ledger.progress_samples import LagObservation
from sluice.settings import FilesConnection, KafkaConnection, KinesisConnection, Settings
from sluice.sources.iceberg_positions import history_of
from sluice.sources.kinesis_shards import kinesis_identity, unread_of_kinesis
from sluice.sources.source_identities import (
    NONE_KNOWN,
    Identities,
    Replaced,
    find_replaced,
    input_table_name,
    kinesis_name,
    topic_identities,
)
from sluice.sources.unread_input import (
    changed_phrase,
    has_to_pass,
    is_at_end,
    observe_folder,
    unread_records,
    unread_rows,
)
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table, require_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.declarations.input_declaration import InputDeclaration
    from sluice.declarations.stream_declaration import StreamDeclaration
    from sluice.ledger.batches import BatchObservation
    from sluice.sources.kafka_topics import KafkaTopics

_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")

_Action = Mapping[str, Any]
"""One line of a commit: what it does, by the name of the action."""

MOST_COMMITS_READ = 200
"""How many commits are read at most: a stream that is further behind has that many unread files at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPosition:
    """How far a stream has read a table: everything before `version`, and of that the files up to `index`.

    is_snapshot: whether it still reads the table as it was at its start.
    """

    version: int
    index: int
    is_snapshot: bool


def delta_position_of(offset: Any) -> DeltaPosition | None:
    """The position in an offset as Delta's source writes it, parsed from JSON; none before the first batch."""
    if not isinstance(offset, Mapping):
        return None
    return DeltaPosition(
        version=int(offset["reservoirVersion"]),
        index=int(offset["index"]),
        is_snapshot=bool(offset.get("isStartingVersion", False)),
    )


def unread_commits(offset: Any, *, table: CheckpointFiles, since: datetime | None) -> LagObservation | None:
    """Count the data files that were committed after a position.

    Parameters
    ----------
    offset: the reader's position; None before its first batch, which begins with the whole table.
    table: the folder of the table.
    since: where a reader without a position begins instead, as declared.

    Returns
    -------
    The lag in files; none when there is no table.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    paths = ((_COMMIT.fullmatch(seen.path), seen.path) for seen in table.list_files("_delta_log"))
    commits = {int(found[1]): path for found, path in paths if found is not None}
    if not commits:
        return None
    at = delta_position_of(offset)
    first = at.version if at is not None else min(commits)
    versions = sorted(version for version in commits if version >= first)
    read = [_actions(table.read_text(commits[version])) for version in versions[-MOST_COMMITS_READ:]]
    if at is None:
        is_whole = min(commits) == 0 and len(versions) <= MOST_COMMITS_READ
        return _unread_from_the_start(read, since, is_whole=is_whole)
    if at.is_snapshot:
        # How many files the table had then may be in Parquet only; it is known that some are left.
        later = read[1:] if at.version in commits else read
        return LagObservation(rows=None, files=1 + sum(len(_data_files(commit)) for commit in later))
    files = sum(len(_data_files(commit)) or _takes_away(commit) for commit in read)
    is_begun = at.version in commits and len(versions) <= MOST_COMMITS_READ
    done = min(max(at.index + 1, 0), len(_data_files(read[0]))) if is_begun else 0
    return LagObservation(rows=None, files=files - done)


def _unread_from_the_start(
    commits: Sequence[Sequence[_Action]], since: datetime | None, *, is_whole: bool
) -> LagObservation:
    """The unread files of a reader without a position."""
    if since is not None:
        begun = [commit for commit in commits if (at := _committed_at(commit)) is None or at >= since]
        return LagObservation(rows=None, files=sum(len(_data_files(commit)) for commit in begun))
    if not is_whole:
        problem = "the stream has not started yet, and the beginning of the Delta table's log is not at hand"
        return LagObservation(rows=None, problem=problem)
    files: set[str] = set()
    for commit in commits:
        files |= {action["add"]["path"] for action in commit if "add" in action}
        files -= {action["remove"]["path"] for action in commit if "remove" in action}
    return LagObservation(rows=None, files=len(files))


def _actions(commit: str | None) -> list[_Action]:
    return [json.loads(line) for line in (commit or "").splitlines() if line.strip()]


def _data_files(commit: Sequence[_Action]) -> list[str]:
    """The files with new rows, in order; those that a compaction rewrote carry none."""
    return [action["add"]["path"] for action in commit if action.get("add", {}).get("dataChange", False)]


def _takes_away(commit: Sequence[_Action]) -> bool:
    """Whether a commit only deleted rows: its reader has no file to read, and fails at it."""
    return any(action.get("remove", {}).get("dataChange", False) for action in commit)


def _committed_at(commit: Sequence[_Action]) -> datetime | None:
    stamps = [action["commitInfo"]["timestamp"] for action in commit if "timestamp" in action.get("commitInfo", {})]
    return datetime.fromtimestamp(stamps[0] / 1000, UTC) if stamps else None


RETRY_AFTER_SECONDS = 15.0
"""A service that did not answer is not asked again before: of ten streams that read it, one waits for a timeout."""


class SourceHeads:
    """Observes how far streams are behind their sources. Clients are kept between observations.

    Parameters
    ----------
    settings: the connections and the catalog of the deployment.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kafka: dict[str, KafkaTopics] = {}
        self._unavailable: dict[str, tuple[float, LagObservation]] = {}

    def observe_lag(
        self,
        declaration: StreamDeclaration,
        newest_batch: BatchObservation | None,
        *,
        known: Identities = NONE_KNOWN,
    ) -> LagObservation:
        """Observe how far a stream is behind all its sources together.

        A source that does not answer makes the lag unknown: `problem` of the result names it, no error is raised.

        Parameters
        ----------
        declaration: the stream.
        newest_batch: its newest recorded batch; None before the first.
        known: the ids of its sources, as its generation keeps them. At a source with another id nothing is counted.
        """
        lags = [
            self._observe_input(name, declared, newest_batch, known)
            for name, declared in declaration.inputs.items()
            if declared.is_stream
        ]
        problems = [lag.problem for lag in lags if lag.problem]
        rows = [lag.rows for lag in lags if lag.rows is not None]
        files = [lag.files for lag in lags if lag.files is not None]
        counted = [*rows, *files, *(lag.undone for lag in lags if lag.undone is not None)]
        return LagObservation(
            rows=sum(rows) if rows and not problems else None,
            problem="; ".join(problems),
            files=sum(files) if files and not problems else None,
            undone=sum(counted) if counted else None,
            is_failure=any(lag.is_failure for lag in lags),
            is_refused=any(lag.is_refused for lag in lags),
        )

    def must_report(self, declaration: StreamDeclaration, newest_batch: BatchObservation | None) -> bool:
        """Whether a run would have to report something though no row is unread: rows of a table were changed or removed
        after the position of a reader that is declared to fail at that, or erased: its position has to come past that.
        Or the position in a topic is not its end.

        Parameters
        ----------
        declaration: the stream.
        newest_batch: its newest recorded batch; None before the first.

        Raises
        ------
        LakehouseError: when a source cannot be read.
        """
        for name, declared in declaration.inputs.items():
            source = declared.declared_source.source
            offset = newest_batch.end_offsets.get(name) if newest_batch is not None else None
            if isinstance(source, KafkaSource) and not self._is_at_end(source, offset):
                return True
            if declared.is_stream and isinstance(source, IcebergSource) and self._has_to_pass(source, offset):
                return True
        return False

    def _is_at_end(self, source: KafkaSource, offset: Any) -> bool:
        topics = self._topics_of(source)
        if topics is None:
            return False
        bounds = topics.bounds_of(topics.partitions_of(source), isolation=source.isolation)
        return is_at_end(offset, topics=bounds)

    def _has_to_pass(self, source: IcebergSource, offset: Any) -> bool:
        failing = {"overwrite": source.on_overwrite == "fail", "delete": source.on_delete == "fail"}
        history = tuple(history_of(require_table(self._catalog, source.table)))
        return has_to_pass(offset, history=history, failing=failing)

    def _observe_input(
        self, name: str, declared: InputDeclaration, newest_batch: BatchObservation | None, known: Identities
    ) -> LagObservation:
        offset = newest_batch.end_offsets.get(name) if newest_batch is not None else None
        source = declared.declared_source.source
        if isinstance(source, KafkaSource):
            return self._observe_kafka(source, offset, known)
        if isinstance(source, IcebergSource):
            return self._observe_table(source, offset, known)
        if isinstance(source, FilesSource):
            return self._observe_files(source, newest_batch)
        if isinstance(source, DeltaSource):
            return self._observe_delta(source, offset)
        if isinstance(source, KinesisSource):
            return self._observe_kinesis(source, offset, known)
        if isinstance(source, RateSource):
            # It never ends: a stream that reads it always has rows to read, and those of a second are ready at once.
            return LagObservation(rows=None, undone=source.rows_per_second)
        # A socket: what its peer has ready to send, no other program can see.
        return LagObservation(rows=None, problem=f"the head of a {declared.declared_source.kind} source is unknown")

    def _observe_kafka(self, source: KafkaSource, offset: Any, known: Identities) -> LagObservation:
        topics, connection = self._topics_of(source), self._settings.connections.get(source.connection)
        if topics is None or not isinstance(connection, KafkaConnection):
            return _failed(f"the deployment has no Kafka connection {source.connection}")
        return self._unless_unavailable(
            connection.bootstrap_servers, lambda: _observe_topics(topics, source, offset, known)
        )

    def _topics_of(self, source: KafkaSource) -> KafkaTopics | None:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        connection = self._settings.connections.get(source.connection)
        if not isinstance(connection, KafkaConnection):
            return None
        if source.connection not in self._kafka:
            self._kafka[source.connection] = KafkaTopics(connection)
        return self._kafka[source.connection]

    def _observe_files(self, source: FilesSource, newest_batch: BatchObservation | None) -> LagObservation:
        connection = self._settings.connections.get(source.connection)
        if not isinstance(connection, FilesConnection):
            return _failed(f"the deployment has no files connection {source.connection}")
        checkpoint = None
        if newest_batch is not None:
            key = newest_batch.key
            checkpoint = f"{self._settings.checkpoints.rstrip('/')}/{key.stream}/{key.generation}"
        store = self._settings.object_store

        def observe() -> LagObservation:
            seen = observe_folder(source, root=connection.root, checkpoint=checkpoint, object_store=store)
            if seen.changed and source.on_changed == "fail":
                return LagObservation(rows=None, problem=changed_phrase(seen.changed), is_failure=True)
            return LagObservation(rows=None, files=len(seen.unread))

        return self._unless_unavailable(connection.root, observe)

    def _observe_delta(self, source: DeltaSource, offset: Any) -> LagObservation:
        connection = self._settings.connections.get(source.connection)
        if not isinstance(connection, FilesConnection):
            return _failed(f"the deployment has no files connection {source.connection}")
        location = f"{connection.root.rstrip('/')}/{source.path.strip('/')}"

        def observe() -> LagObservation:
            table = open_checkpoint_files(location, self._settings.object_store)
            lag = unread_commits(offset, table=table, since=source.from_timestamp)
            return _refused(f"there is no Delta table {source.path}") if lag is None else lag

        return self._unless_unavailable(connection.root, observe)

    def _observe_kinesis(self, source: KinesisSource, offset: Any, known: Identities) -> LagObservation:
        connection = self._settings.connections.get(source.connection)
        if not isinstance(connection, KinesisConnection):
            return _failed(f"the deployment has no Kinesis connection {source.connection}")
        if offset is None and source.starting == "latest":
            return LagObservation(rows=None, problem="the stream starts at the newest record and has not started yet")

        def observe() -> LagObservation:
            name = kinesis_name(source)
            if name in known and (another := find_replaced(known, {name: kinesis_identity(source, connection)})):
                return _replaced(another)
            return unread_of_kinesis(source, connection, offset)

        return self._unless_unavailable(connection.endpoint or connection.region, observe)

    def _observe_table(self, source: IcebergSource, offset: Any, known: Identities) -> LagObservation:
        def observe() -> LagObservation:
            table = load_table(self._catalog, source.table)
            if table is None:
                return _refused(f"table {source.table} does not exist")
            seen = {input_table_name(source.table): str(table.metadata.table_uuid)}
            if another := find_replaced(known, seen):
                return _replaced(another)
            return unread_rows(offset, history=tuple(history_of(table)), starting=source.starting)

        return self._unless_unavailable(self._settings.catalog.uri, observe)

    def _unless_unavailable(self, service: str, observe: Callable[[], LagObservation]) -> LagObservation:
        """Observe, unless the service did not answer within the last `RETRY_AFTER_SECONDS`."""
        until, unknown = self._unavailable.get(service, (0.0, None))
        if unknown is not None and time.monotonic() < until:
            return unknown
        try:
            return observe()
        except SourceRefusedError as error:
            return _refused(error.message.rstrip("."))
        except (CheckpointError, LakehouseError) as error:
            unknown = _failed(error.message.rstrip("."))
            self._unavailable[service] = (time.monotonic() + RETRY_AFTER_SECONDS, unknown)
            return unknown

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings)


def _failed(problem: str) -> LagObservation:
    """The lag at a source that can be observed and did not answer."""
    return LagObservation(rows=None, problem=problem, is_failure=True)


def _refused(problem: str) -> LagObservation:
    """The lag at a source that answered, and is not there or may not be read."""
    return LagObservation(rows=None, problem=problem, is_failure=True, is_refused=True)


def _replaced(found: Sequence[Replaced]) -> LagObservation:
    """The lag at a source that was deleted and created again: the position is one in the old one."""
    return _refused("; ".join(map(str, found)))


def _observe_topics(topics: KafkaTopics, source: KafkaSource, offset: Any, known: Identities) -> LagObservation:
    partitions = topics.partitions_of(source)
    if missing := sorted(set(source.topics or ()) - set(partitions)):
        # Kafka shows a user only the topics that it may see.
        return _refused(f"Kafka has no topic {', '.join(missing)}, or the user of the connection may not see it")
    if known and (another := find_replaced(known, topic_identities(source, topics))):
        return _replaced(another)
    bounds = topics.bounds_of(partitions, isolation=source.isolation)
    return unread_records(offset, topics=bounds, from_the_beginning=source.starting == "earliest")
