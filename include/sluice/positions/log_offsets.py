"""The end offsets of a batch as the offset log has them, line by line, and as tables and ledger do, by source."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sluice.publication.marks import UNNAMED_SOURCE
from sluice.publication.staged_batch import canonical_offsets
from sluice.sources.iceberg_positions import stream_offset_of


def canonical_end(texts: Sequence[str | None], sources: Sequence[str]) -> str:
    """The offsets of an entry of the offset log, which has one for each source.

    Parameters
    ----------
    texts: as the sources write them; none for a source without an offset.
    sources: the input of each source, in Spark's order.
    """
    offsets: dict[str, str | None] = dict.fromkeys(sources)
    for index, text in enumerate(texts):
        offsets[sources[index] if index < len(sources) else f"{UNNAMED_SOURCE}{index}"] = text
    return canonical_offsets(offsets)


def reads_within_snapshot(ends: Sequence[str | None], following: Sequence[str | None]) -> bool:
    """Whether a batch continues in a snapshot that the one before has begun to read file by file. Spark would plan
    other files behind the same offset. A batch that reads files one by one never ends in a later snapshot: the plans of
    a continuation stay within one.

    Parameters
    ----------
    ends, following: where the two batches end, source by source; empty where that is unknown.
    """
    return any(
        first is not None
        and then is not None
        and first.scan_all_files
        and first.snapshot_id == then.snapshot_id
        and first != then
        and first.position <= then.position
        for first, then in zip(map(stream_offset_of, ends), map(stream_offset_of, following), strict=False)
    )


def source_lines(ends: str, sources: tuple[str, ...]) -> tuple[str | None, ...] | None:
    """The offsets of a batch as the lines of its entry; none when their order is unknown.

    Parameters
    ----------
    ends: from `canonical_end`. sources: in Spark's order.
    """
    offsets = json.loads(ends)
    names = (*sources, *(f"{UNNAMED_SOURCE}{place}" for place in range(len(sources), len(offsets))))
    if set(names) != set(offsets):
        return None
    return tuple(_line(offsets[name]) for name in names)


def _line(offset: object) -> str | None:
    """An offset as its source writes it: text as it is, JSON as Spark's and Iceberg's sources order it."""
    if offset is None or isinstance(offset, str):
        return offset
    text = json.dumps(offset, separators=(",", ":"))
    position = stream_offset_of(text)
    return text if position is None else position.text()
