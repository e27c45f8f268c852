"""Every kind of damage to a checkpoint is found by its own property, and a sound one has none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.checkpoints.checkpoint_layout import OFFSETS as OFFSET_LOG
from sluice.checkpoints.checkpoint_layout import CheckpointContents, FileObservation, log_files, paths_to_read
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint
from sluice.ledger.recorded_checks import CheckpointObservation, CheckpointProperty

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
QUERY_ID = "5b50e120-f7a9-4610-916a-695e361d1bb4"
OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":1}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
CHANGES = "a" * 46
CHECKSUM = json.dumps({"algorithm": "CRC32C", "value": 1, "mainFileSize": len(CHANGES)})

Files = dict[str, str]

KNOWN = CheckpointExpectation(
    stream="silver",
    generation=1,
    query_id=QUERY_ID,
    has_batches=True,
    is_live=True,
    longest_batch_seconds=300,
)


def sound() -> Files:
    """The files of a stateful stream's checkpoint: batches 3 to 5 are committed, the state has two partitions."""
    files = {"metadata": json.dumps({"id": QUERY_ID}), ".metadata.crc": "crc", "sources/0/0": "v1\n{}"}
    for batch in (3, 4, 5):
        files[f"offsets/{batch}"] = OFFSETS
        files[f"commits/{batch}"] = COMMIT
    for part in (0, 1):
        files[f"state/0/{part}/4.zip"] = "whole"
        for version in (4, 5, 6):
            files[f"state/0/{part}/{version}.changelog"] = CHANGES
            files[f"state/0/{part}/{version}.changelog.crc"] = CHECKSUM
        files[f"state/0/{part}/_metadata/schema"] = "v2"
    return files


def contents(files: Files, *, age: timedelta = timedelta(seconds=2), planned: int | None = None) -> CheckpointContents:
    """The files as they are observed, all of one age."""
    seen = tuple(
        FileObservation(path=path, size_bytes=len(text.encode()), modified_at=NOW - age)
        for path, text in sorted(files.items())
    )
    batches = log_files(seen, OFFSET_LOG)
    return CheckpointContents(
        location="file:///checkpoints/silver/1",
        files=seen,
        newest_planned_batch=max(batches, default=None) if planned is None else planned,
        texts={path: files[path] for path in paths_to_read(seen)},
    )


def check(seen: CheckpointContents, expected: CheckpointExpectation = KNOWN) -> CheckpointObservation:
    """The judgement at noon."""
    return judge_checkpoint(expected=expected, seen=seen, now=NOW)


def test_a_valid_checkpoint_has_no_problem() -> None:
    seen = check(contents(sound()))

    assert seen.problems == ()
    beside = {CheckpointProperty.POSITION, CheckpointProperty.PUBLISHED_FILES, CheckpointProperty.COPIES}
    assert [finding.name for finding in seen.findings] == [one for one in CheckpointProperty if one not in beside]
    assert (seen.newest_batch, seen.newest_commit_age_seconds) == (5, 2.0)


def emptied(path: str) -> Callable[[Files], Files]:
    """The files with one of them empty."""
    return lambda files: {**files, path: ""}


def without(*paths: str) -> Callable[[Files], Files]:
    """The files without some."""
    return lambda files: {path: text for path, text in files.items() if path not in paths}


def written(path: str, text: str) -> Callable[[Files], Files]:
    """The files with another text in one of them."""
    return lambda files: {**files, path: text}


@pytest.mark.parametrize(
    ("damage", "found", "told"),
    [
        (without("metadata"), {CheckpointProperty.IDENTITY}, "metadata is missing"),
        (emptied("metadata"), {CheckpointProperty.IDENTITY, CheckpointProperty.FILES_COMPLETE}, "empty"),
        (written("metadata", "{no json"), {CheckpointProperty.IDENTITY}, "not the JSON object"),
        (written("metadata", '{"id":"other"}'), {CheckpointProperty.IDENTITY}, "this is another checkpoint"),
        (
            emptied("offsets/5"),
            {CheckpointProperty.OFFSETS_READABLE, CheckpointProperty.FILES_COMPLETE},
            "offsets/5",
        ),
        (
            emptied("commits/5"),
            {CheckpointProperty.COMMITS_READABLE, CheckpointProperty.FILES_COMPLETE},
            "commits/5",
        ),
        (written("offsets/5", "v1\n{no json\n-"), {CheckpointProperty.OFFSETS_READABLE}, "second line"),
        (written("offsets/5", 'v1\n{}\n{"a":'), {CheckpointProperty.OFFSETS_READABLE}, "source lines"),
        (written("offsets/5", "v1\n{}"), {CheckpointProperty.OFFSETS_READABLE}, "no line for a source"),
        (written("offsets/5", OFFSETS.replace("v1", "v2")), {CheckpointProperty.OFFSETS_READABLE}, "newer Spark"),
        (written("commits/5", COMMIT.replace("v1", "v7")), {CheckpointProperty.COMMITS_READABLE}, "version is v7"),
        (written("commits/5", "v1\ngarbage"), {CheckpointProperty.COMMITS_READABLE}, "not a JSON object"),
        (without("offsets/5"), {CheckpointProperty.COMMITS_FOLLOW_OFFSETS}, "batches 5 are committed"),
        (
            without("offsets/4"),
            {CheckpointProperty.OFFSETS_CONTIGUOUS, CheckpointProperty.COMMITS_FOLLOW_OFFSETS},
            "misses batches 4",
        ),
        (
            without("commits/5", "commits/4"),
            {CheckpointProperty.COMMITS_FOLLOW_OFFSETS},
            "batch 5 is planned and the newest commit is 3",
        ),
        (without("state/0/1/6.changelog"), {CheckpointProperty.STATE_COMPLETE}, "state/0/1: version 6 is missing"),
        (without("state/0/1/5.changelog"), {CheckpointProperty.STATE_COMPLETE}, "version 5 is missing"),
        (written("state/0/0/6.changelog", "aaa"), {CheckpointProperty.STATE_COMPLETE}, "has 3 bytes of 46"),
        (emptied("state/0/0/4.zip"), {CheckpointProperty.FILES_COMPLETE}, "state/0/0/4.zip"),
        (emptied("sources/0/0"), {CheckpointProperty.FILES_COMPLETE}, "sources/0/0"),
    ],
)
def test_damage_is_found(damage: Callable[[Files], Files], found: set[CheckpointProperty], told: str) -> None:
    seen = check(contents(damage(sound())))

    assert {finding.name for finding in seen.problems} == found
    assert told in "; ".join(finding.message for finding in seen.problems)


def test_a_partition_of_the_state_that_is_gone_is_found() -> None:
    gone = {path: text for path, text in sound().items() if not path.startswith("state/0/0/")}

    assert [finding.name for finding in check(contents(gone)).problems] == [CheckpointProperty.STATE_COMPLETE]


@pytest.mark.parametrize("path", ["state/0/_metadata/metadata", "state/0/_metadata/v2/4"])
@pytest.mark.parametrize(("noted", "is_found"), [("numPartitions", True), ("partitions", False)])
def test_the_last_partition_of_the_state_is_missed_where_spark_has_noted_their_number(
    path: str, noted: str, is_found: bool
) -> None:
    note = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [{"storeName": "default", noted: 3}]}
    gone = sound() | {path: f"v1\n{json.dumps(note)}"}
    if path.endswith("/v2/4"):
        gone["state/0/_metadata/v2/3"] = "an older one"
    known = gone | {file.replace("state/0/1", "state/0/2"): text for file, text in gone.items()}

    assert not check(contents(known)).problems
    messages = [problem.message for problem in check(contents(gone)).problems]
    assert messages == (["state/0/2: the folder is gone or empty"] if is_found else [])


def test_an_aggregation_without_keys_has_one_partition_whatever_is_noted() -> None:
    note = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [{"storeName": "default", "numPartitions": 3}]}
    alone = {path: text for path, text in sound().items() if not path.startswith("state/0/1/")}

    assert not check(contents(alone | {"state/0/_metadata/metadata": f"v1\n{json.dumps(note)}"})).problems


def test_a_store_of_a_join_that_is_gone_in_one_partition_is_found() -> None:
    folders = [f"state/1/{part}/{side}-keyToNumValues" for part in (0, 1) for side in ("left", "right")]
    joined = sound() | {f"{folder}/6.zip": "whole" for folder in folders}
    gone = {path: text for path, text in joined.items() if not path.startswith("state/1/1/left")}

    assert not check(contents(joined)).problems
    (problem,) = check(contents(gone)).problems
    assert problem.message == "state/1/1/left-keyToNumValues: the folder is gone or empty"


STORES = ("left-keyToNumValues", "right-keyToNumValues")


def joined(*, noted: tuple[str, ...] = STORES, stores: tuple[str, ...] = STORES) -> Files:
    """A query with an aggregation before a join, as Spark notes both."""
    folders = [f"state/1/{part}/{store}".rstrip("/") for part in (0, 1) for store in stores]
    notes = {
        operator: {"stateStoreInfo": [{"storeName": store, "numPartitions": 2} for store in names]}
        for operator, names in (("0", ("default",)), ("1", noted))
    }
    return (
        sound()
        | {f"{folder}/6.zip": "whole" for folder in folders}
        | {f"state/{one}/_metadata/metadata": f"v1\n{json.dumps(note)}" for one, note in notes.items()}
    )


@pytest.mark.parametrize(
    ("gone", "found"),
    [
        ("state/0/[01]/", "state/0: the folder is gone or empty"),
        ("state/1/[01]/", "state/1: the folder is gone or empty"),
        ("state/1/[01]/left", "state/1/0/left-keyToNumValues: the folder is gone or empty; state/1/1/left"),
        ("state/1/1/", "state/1/1/left-keyToNumValues: the folder is gone or empty; state/1/1/right"),
        ("state/[01]/[01]/", "the state is gone"),
    ],
)
def test_stores_that_are_gone_everywhere_are_found_by_what_spark_has_noted(gone: str, found: str) -> None:
    left = {path: text for path, text in joined().items() if re.match(gone, path) is None}

    assert not check(contents(joined())).problems
    (problem,) = check(contents(left)).problems
    assert problem.message.startswith(found)


def test_an_operator_before_another_that_is_gone_with_its_note_is_found() -> None:
    """Operators have numbers from 0 without a gap. Spark's optimizer decides how many there are."""
    left = {path: text for path, text in joined().items() if not path.startswith("state/0/")}

    (problem,) = check(contents(left)).problems

    assert problem.message == "state/0: the folder is gone or empty"


def test_a_join_that_keeps_all_in_one_store_is_whole() -> None:
    assert not check(contents(joined(stores=("",)))).problems


def test_changes_from_the_beginning_are_needed_while_no_whole_state_exists() -> None:
    young = {path: text for path, text in sound().items() if not path.endswith(".zip")}

    message = check(contents(young)).problems[0].message

    assert "version 1 is missing; state/0/0: version 2 is missing" in message


def test_the_state_before_the_newest_whole_one_is_not_needed() -> None:
    old = without("state/0/0/4.changelog", "state/0/1/4.changelog")(sound())

    assert check(contents(old)).healthy


@pytest.mark.parametrize(
    ("query_id", "has_batches", "healthy"),
    [(None, False, True), (QUERY_ID, False, False), (None, True, False)],
    ids=["not started", "registered", "has batches"],
)
def test_a_folder_without_files(query_id: str | None, has_batches: bool, healthy: bool) -> None:
    expected = replace(KNOWN, query_id=query_id, has_batches=has_batches)

    seen = check(contents({}), expected)

    assert seen.healthy is healthy
    assert [finding.name for finding in seen.findings] == [CheckpointProperty.EXISTS]


@pytest.mark.parametrize(
    ("is_live", "age_seconds", "healthy"),
    [(True, 299, True), (True, 301, False), (False, 90_000, True)],
    ids=["at work", "stuck", "stopped within a batch"],
)
def test_a_batch_that_is_planned_and_not_committed(is_live: bool, age_seconds: int, healthy: bool) -> None:
    unfinished = without("commits/5")(sound())

    seen = check(contents(unfinished, age=timedelta(seconds=age_seconds)), replace(KNOWN, is_live=is_live))

    assert seen.healthy is healthy
    assert seen.newest_batch == 4
    assert {finding.name for finding in seen.problems} <= {CheckpointProperty.PROGRESS}


def test_idle_is_healthy_however_long() -> None:
    assert check(contents(sound(), age=timedelta(days=90))).healthy


def test_a_live_stream_that_goes_on_while_it_is_looked_at_is_healthy() -> None:
    """Batches 6 and 7 were planned after the commit log had been listed."""
    later = {**sound(), "offsets/6": OFFSETS, "offsets/7": OFFSETS}

    assert check(contents(later, planned=5)).healthy


@pytest.mark.parametrize(("minutes", "healthy"), [(59, True), (61, False)], ids=["being written", "left over"])
def test_temporary_files(minutes: int, healthy: bool) -> None:
    seen = contents({**sound(), "offsets/.6.1b2c.tmp": "v1"}, age=timedelta(minutes=minutes))

    assert check(seen).healthy is healthy
