"""What becomes of a file: each fact alone keeps it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.maintenance.orphan_files import CLOCK_MARGIN, FileFate, decide_fates, sentences_of
from sluice.publication.data_files import Writer, WriterKind, writer_of
from sluice.tables.stored_files import StoredFile

NOW = datetime(2026, 11, 20, tzinfo=UTC)
GRACE = timedelta(days=3)
WRITTEN = NOW - timedelta(days=4)
RUN = Writer.of_run(7)
FILE = StoredFile(place="sluice_writes_u/run_7/a.parquet", size=3, modified_at=WRITTEN)
LEFT: dict[str, Any] = {
    "needed": frozenset(),
    "writers": {RUN: WRITTEN + timedelta(minutes=1)},
    "whole_since": WRITTEN - CLOCK_MARGIN,
    "now": NOW,
    "grace": GRACE,
}
MOMENT = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("changed", "fate"),
    [
        ({}, FileFate.LEFT),
        ({"needed": {"a.parquet"}}, FileFate.NEEDED),
        ({"needed": {"b.parquet"}}, FileFate.LEFT),
        ({"now": WRITTEN + GRACE - MOMENT}, FileFate.YOUNG),
        ({"now": WRITTEN + GRACE}, FileFate.LEFT),
        ({"writers": {}}, FileFate.WRITER_UNKNOWN),
        ({"writers": {Writer(kind=WriterKind.REWRITE, identity="7"): NOW}}, FileFate.WRITER_UNKNOWN),
        ({"writers": {RUN: None}}, FileFate.WRITER_LIVES),
        ({"writers": {RUN: NOW - 2 * CLOCK_MARGIN}}, FileFate.WRITER_LIVES),
        ({"writers": {RUN: NOW - 2 * CLOCK_MARGIN - MOMENT}}, FileFate.LEFT),
        ({"writers": {RUN: WRITTEN - CLOCK_MARGIN}}, FileFate.LEFT),
        ({"writers": {RUN: WRITTEN - CLOCK_MARGIN - MOMENT}}, FileFate.BROUGHT_BACK),
        ({"whole_since": WRITTEN - CLOCK_MARGIN + MOMENT}, FileFate.HISTORY_EXPIRED),
        ({"whole_since": None}, FileFate.HISTORY_EXPIRED),
    ],
)
def test_every_fact_keeps_a_file(changed: dict[str, Any], fate: FileFate) -> None:
    (judged,) = decide_fates([(FILE, RUN)], **{**LEFT, **changed})
    assert judged.fate is fate


def test_a_file_without_a_writer_is_foreign() -> None:
    (judged,) = decide_fates([(FILE, None)], **LEFT)
    assert judged.fate is FileFate.FOREIGN


@pytest.mark.parametrize(
    ("place", "writer"),
    [
        ("run_7/kind=a/x.parquet", RUN),
        ("run_7/x.parquet", RUN),
        ("refresh_3_0a1b/x.parquet", Writer(kind=WriterKind.REFRESH, identity="3_0a1b")),
        ("refresh_3_0a1b/sluice_writes_v/run_9/x.parquet", Writer(kind=WriterKind.REFRESH, identity="3_0a1b")),
        ("run_7", None),
        ("run_/x.parquet", None),
        ("walk_7/x.parquet", None),
        ("x/run_7/x.parquet", None),
    ],
)
def test_the_folder_says_who_wrote(place: str, writer: Writer | None) -> None:
    assert writer_of(place) == writer


def test_the_sentences_count_what_stays() -> None:
    judged = decide_fates([(FILE, RUN), (replace(FILE, place="b.parquet", size=2**20), None)], **LEFT)
    assert [one.partition(",")[0] for one in sentences_of(judged)] == ["1 files", "1 files"]
    assert "1.0 MiB, not written by Sluice" in sentences_of(judged)[1]
