"""Decides whether a stream can start from its checkpoint, before Spark tries.

Spark 4.1 notices some damage late and some never: without `metadata` it continues silently under a new query id, and a
sink that recognises batches by the old id writes them again. Each property has one finding, healthy or not. State is
judged at the newest commit, from which a start loads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.checkpoints.checkpoint_layout import (
    BEGUN,
    COMMITS,
    METADATA,
    OFFSETS,
    CheckpointContents,
    FileObservation,
    StateFile,
    checksum_path,
    is_hidden,
    log_files,
    needed_state_files,
    operator_files,
    state_stores,
)
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.recorded_checks import CheckpointFinding, CheckpointObservation, CheckpointProperty

NOT_WRITTEN = "is not what was written, by the checksum beside it"

SHOWN_PROBLEMS = 3
"""How many damaged stores a message lists; they are usually damaged together."""


def judge_state(seen: CheckpointContents, *, committed_batch: int | None, is_kept: bool = False) -> CheckpointFinding:
    """Check that every store has all files that a start after `committed_batch` loads, each in its full size.

    A start after batch N loads state version N + 1: the newest full state up to it and all later changes.

    Parameters
    ----------
    is_kept: whether the query is known to keep state.
    """
    stores, noted = state_stores(seen.files), _noted_stores(seen)
    if (is_kept or noted) and not stores and committed_batch is not None:
        return CheckpointFinding(name=CheckpointProperty.STATE_COMPLETE, healthy=False, message="the state is gone")
    if committed_batch is None or not stores:
        return CheckpointFinding(name=CheckpointProperty.STATE_COMPLETE, healthy=True, message="no state is kept yet")
    version = committed_batch + 1
    problems = _missing_stores(stores, noted)
    for folder, store in stores.items():
        problems += [f"{folder}: {problem}" for problem in _problems_of(store, version, seen)]
    message = f"{len(stores)} stores are whole at version {version}"
    if problems:
        more = f" and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        message = f"{'; '.join(problems[:SHOWN_PROBLEMS])}{more}"
    return CheckpointFinding(name=CheckpointProperty.STATE_COMPLETE, healthy=not problems, message=message)


def _missing_stores(stores: Collection[str], noted: Mapping[str, _NotedStores]) -> list[str]:
    """Operators have numbers from 0 without a gap. Each has as many partitions as Spark has noted, and each of them the
    same stores, a join several.

    The number says nothing where one store of the first partition is alone: an aggregation without keys has no other
    one whatever is noted, and which operators have not shows nowhere. There, and without a note, partitions have
    numbers from 0 without a gap. The names say nothing where folders have others: a join may keep all in one store.
    """
    partitions: dict[str, int] = {}
    names: dict[str, set[str]] = {}
    for folder in stores:
        _, operator, partition, *name = folder.split("/")
        if partition.isdecimal():
            partitions[operator] = max(int(partition) + 1, partitions.get(operator, 0))
            names.setdefault(operator, set()).add("".join(f"/{one}" for one in name))
    seen = max((int(one) for one in noted.keys() | names.keys() if one.isdecimal()), default=-1) + 1
    all_of_them = noted.keys() | set(map(str, range(seen)))
    for operator in noted.keys() & names.keys():
        if partitions[operator] > 1 or len(noted[operator].names) > 1:
            partitions[operator] = max(partitions[operator], noted[operator].partitions)
        if names[operator] < noted[operator].names:
            names[operator] |= noted[operator].names
    expected = (
        f"state/{operator}/{partition}{name}"
        for operator, known in names.items()
        for partition in range(partitions[operator])
        for name in sorted(known)
    )
    return [
        *(f"state/{operator}: the folder is gone or empty" for operator in sorted(all_of_them - names.keys())),
        *(f"{folder}: the folder is gone or empty" for folder in expected if folder not in stores),
    ]


STUCK_AFTER_TRIGGERS = 20
"""A batch that takes as long as this many triggers is stuck, unless the declaration says `stall_after`."""

SHORTEST_STUCK_SECONDS = 300.0
"""No batch counts as stuck before this: a short trigger does not limit how long a large batch may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotedStores:
    """How many partitions an operator with state has, and the names of the stores of each as the ends of folders."""

    partitions: int
    names: frozenset[str]


def _noted_stores(seen: CheckpointContents) -> dict[str, _NotedStores]:
    """What Spark has noted of each operator with state. Source: `OperatorStateMetadata` of Spark 4.1."""
    found: dict[str, _NotedStores] = {}
    for operator, file in operator_files(seen.files).items():
        try:
            noted = json.loads((seen.texts.get(file.path) or "").partition("\n")[2])["stateStoreInfo"]
            found[operator] = _NotedStores(
                partitions=max(int(store["numPartitions"]) for store in noted),
                names=frozenset(_folder_end(store["storeName"]) for store in noted),
            )
        except (ValueError, LookupError, TypeError):  # another version of the note
            continue
    return found


def _folder_end(store: str) -> str:
    return "" if store == "default" else f"/{store}"


def _problems_of(store: Sequence[StateFile], version: int, seen: CheckpointContents) -> list[str]:
    needed = needed_state_files(store, version)
    first = min((found.version for found in needed), default=version)
    missing = sorted(set(range(first if _has_base(needed) else 1, version + 1)) - {found.version for found in needed})
    problems = [f"version {number} is missing" for number in missing]
    for found in needed:
        name = found.file.path.rpartition("/")[2]
        whole = _recorded_bytes(seen.texts.get(checksum_path(found.file.path)))
        if whole is not None and whole != found.file.size_bytes:
            problems.append(f"{name} has {found.file.size_bytes} bytes of {whole}")
        elif found.file.path in seen.damaged:
            problems.append(f"{name} {NOT_WRITTEN}")
    return problems


def _has_base(needed: Sequence[StateFile]) -> bool:
    return any(found.is_full for found in needed)


def _recorded_bytes(checksum: str | None) -> int | None:
    """The size that Spark 4.1 recorded beside a state file; unset when there is no such record."""
    if checksum is None:
        return None
    try:
        size = json.loads(checksum).get("mainFileSize")
    except (ValueError, AttributeError):  # another kind of sidecar, without a size
        return None
    return size if isinstance(size, int) else None


KNOWN_LOG_VERSION = "v1"
"""The only version of the offset and the commit log that the pinned Spark reads and writes."""

LEFTOVER_AFTER = timedelta(hours=1)
"""A temporary file of at least this age is a leftover: writing one takes seconds."""

SHOWN = 5
"""How many names a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointExpectation:
    """The facts about a checkpoint that the ledger and the declaration have.

    query_id: the id that was registered at the first start; unset before it.
    has_batches: whether the ledger holds batches of this generation.
    is_live: whether a driver is running.
    longest_batch_seconds: how long a batch of a live stream may take before it counts as stuck.
    keeps_state: whether the query is known to keep state.
    """

    stream: str
    generation: int
    query_id: str | None
    has_batches: bool
    is_live: bool
    longest_batch_seconds: float
    keeps_state: bool = False


def longest_batch_seconds(stream: StreamDeclaration) -> float:
    """How long a batch of a stream may take before it counts as stuck: as declared, else by its own trigger."""
    if stream.supervision.stall_after is not None:
        return stream.supervision.stall_after.total_seconds()
    interval = stream.trigger.processing_time if stream.trigger is not None else None
    return max(STUCK_AFTER_TRIGGERS * interval.total_seconds() if interval else 0.0, SHORTEST_STUCK_SECONDS)


def judge_checkpoint(
    *, expected: CheckpointExpectation, seen: CheckpointContents, now: datetime
) -> CheckpointObservation:
    """Compare a checkpoint with the expectation at `now`."""
    offsets, commits = log_files(seen.files, OFFSETS), log_files(seen.files, COMMITS)
    findings = [_exists(expected, seen)]
    if seen.files:
        findings += [
            _identity(expected, seen),
            _contiguous(offsets),
            _readable(CheckpointProperty.OFFSETS_READABLE, seen, offsets, problem_of=offset_problem),
            _commits_follow(offsets, commits, seen.newest_planned_batch),
            _readable(CheckpointProperty.COMMITS_READABLE, seen, commits, problem_of=commit_problem),
            _complete(seen),
            judge_state(seen, committed_batch=max(commits, default=None), is_kept=expected.keeps_state),
            _leftovers(seen, now),
            _progress(expected, offsets, commits, seen.newest_planned_batch, now),
        ]
    newest = max(commits, default=None)
    return CheckpointObservation(
        stream=expected.stream,
        generation=expected.generation,
        location=seen.location,
        checked_at=now,
        findings=tuple(findings),
        newest_batch=newest,
        newest_commit_age_seconds=None if newest is None else _age_seconds(commits[newest], now),
    )


def offset_problem(text: str) -> str | None:
    """The problem of a file of the offset log, which has a version, a JSON object, and a line for each source."""
    version, *lines = text.splitlines() or [""]
    if version != KNOWN_LOG_VERSION:
        return _version_problem(version)
    if len(lines) < 2:
        return "it has no line for a source"
    if not isinstance(_json(lines[0]), dict):
        return "its second line is not a JSON object"
    unreadable = [line for line in lines[1:] if line != "-" and _json(line) is None]
    return f"{len(unreadable)} of its source lines are not JSON" if unreadable else None


def commit_problem(text: str) -> str | None:
    """The problem of a file of the commit log, which has a version and a JSON object; none when it is valid."""
    version, *lines = text.splitlines() or [""]
    if version != KNOWN_LOG_VERSION:
        return _version_problem(version)
    return None if lines and isinstance(_json(lines[0]), dict) else "its second line is not a JSON object"


def _version_problem(version: str) -> str:
    if version.startswith("v") and version[1:].isdecimal():
        return f"its version is {version} and this Spark reads {KNOWN_LOG_VERSION}: a newer Spark wrote it"
    return f"its first line is not the version {KNOWN_LOG_VERSION}"


def _json(text: str) -> object:
    """The value of a JSON line; none when it is not JSON. No line of a checkpoint is JSON's own null."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    return value


def _finding(name: CheckpointProperty, problem: str | None, good: str) -> CheckpointFinding:
    return CheckpointFinding(name=name, healthy=problem is None, message=problem or good)


def _exists(expected: CheckpointExpectation, seen: CheckpointContents) -> CheckpointFinding:
    if seen.files:
        return _finding(CheckpointProperty.EXISTS, None, f"{seen.location} has {len(seen.files)} files")
    started = expected.has_batches or expected.query_id is not None
    problem = (
        f"{seen.location} is empty, though generation {expected.generation} has a query: "
        f"the checkpoint is lost; a new start there would read everything again"
    )
    return _finding(CheckpointProperty.EXISTS, problem if started else None, "the stream has not been started yet")


def _identity(expected: CheckpointExpectation, seen: CheckpointContents) -> CheckpointFinding:
    text = seen.texts.get(METADATA)
    content = _json(text) if text else None
    query_id = content.get("id") if isinstance(content, dict) else None
    problem = None
    if text is None:
        problem = "metadata is missing: Spark would continue silently under a new query id"
    elif not isinstance(query_id, str):
        problem = "metadata is empty or not the JSON object with the query id that Spark writes"
    elif expected.query_id is not None and query_id != expected.query_id:
        problem = f"metadata holds query id {query_id}; registered is {expected.query_id}: this is another checkpoint"
    elif METADATA in seen.damaged:
        problem = f"metadata {NOT_WRITTEN}"
    registered = "as registered" if expected.query_id else "not registered yet"
    return _finding(CheckpointProperty.IDENTITY, problem, f"query id {query_id}, {registered}")


def _contiguous(offsets: Mapping[int, FileObservation]) -> CheckpointFinding:
    if not offsets:
        return _finding(CheckpointProperty.OFFSETS_CONTIGUOUS, None, "no batch has been planned yet")
    first, last = min(offsets), max(offsets)
    missing = [batch for batch in range(first, last) if batch not in offsets]
    problem = f"the offset log misses {_batches(missing)} between {first} and {last}" if missing else None
    return _finding(CheckpointProperty.OFFSETS_CONTIGUOUS, problem, f"batches {first} to {last} without a gap")


def _readable(
    name: CheckpointProperty,
    seen: CheckpointContents,
    log: Mapping[int, FileObservation],
    *,
    problem_of: Callable[[str], str | None],
) -> CheckpointFinding:
    read = [file.path for file in log.values() if file.path in seen.texts]
    problems = [f"{path}: {problem}" for path in read if (problem := problem_of(seen.texts[path]))]
    problems += [f"{path} {NOT_WRITTEN}" for path in read if path in seen.damaged and not problem_of(seen.texts[path])]
    return _finding(name, "; ".join(problems) or None, f"the newest {len(read)} files are readable")


def _commits_follow(
    offsets: Mapping[int, FileObservation], commits: Mapping[int, FileObservation], planned: int | None
) -> CheckpointFinding:
    name = CheckpointProperty.COMMITS_FOLLOW_OFFSETS
    # Spark purges the offset log first, so commits older than the oldest offsets will be purged next.
    orphaned = [batch for batch in commits if batch not in offsets and batch >= min(offsets, default=0)]
    if orphaned:
        return _finding(name, f"{_batches(orphaned)} are committed and have no offsets", "")
    newest = max(commits, default=-1)
    if planned is not None and planned - newest > 1:
        return _finding(name, f"batch {planned} is planned and the newest commit is {_or_none(newest)}", "")
    return _finding(name, None, f"planned up to {_or_none(max(offsets, default=-1))}, committed {_or_none(newest)}")


def _complete(seen: CheckpointContents) -> CheckpointFinding:
    looked_at = (file for file in seen.files if file.path != BEGUN and not is_hidden(file.path))
    empty = [file.path for file in looked_at if file.size_bytes == 0]
    return _finding(CheckpointProperty.FILES_COMPLETE, f"empty: {_names(empty)}" if empty else None, "no file is empty")


def _leftovers(seen: CheckpointContents, now: datetime) -> CheckpointFinding:
    old = [
        file.path
        for file in seen.files
        if is_hidden(file.path) and file.path.endswith(".tmp") and now - file.modified_at > LEFTOVER_AFTER
    ]
    problem = f"{len(old)} temporary files of writes that never ended: {_names(old)}" if old else None
    return _finding(CheckpointProperty.NO_LEFTOVERS, problem, "no temporary file is older than an hour")


def _progress(
    expected: CheckpointExpectation,
    offsets: Mapping[int, FileObservation],
    commits: Mapping[int, FileObservation],
    planned: int | None,
    now: datetime,
) -> CheckpointFinding:
    name = CheckpointProperty.PROGRESS
    newest = max(commits, default=None)
    waiting = planned is not None and planned in offsets and (newest is None or planned > newest)
    if planned is None or not waiting:
        committed = "nothing is planned"
        if newest is not None:
            committed = f"batch {newest} was committed {_age_seconds(commits[newest], now):.0f} s ago, nothing waits"
        return _finding(name, None, committed)
    age = _age_seconds(offsets[planned], now)
    if not expected.is_live:
        return _finding(name, None, f"batch {planned} was planned {age:.0f} s ago; the next start runs it again")
    stuck = age > expected.longest_batch_seconds
    allowed = f"allowed are {expected.longest_batch_seconds:.0f} s"
    return _finding(
        name,
        f"batch {planned} was planned {age:.0f} s ago and is not committed; {allowed}" if stuck else None,
        f"batch {planned} has been running for {age:.0f} s; {allowed}",
    )


def _age_seconds(file: FileObservation, now: datetime) -> float:
    # The storage and the database have different clocks; a file from the future counts as written now.
    return max(0.0, (now - file.modified_at).total_seconds())


def _or_none(batch: int) -> str:
    return "none" if batch < 0 else str(batch)


def _batches(batches: list[int]) -> str:
    return f"batches {_names([str(batch) for batch in batches])}"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
