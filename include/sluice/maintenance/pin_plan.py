"""Which snapshots of a table its readers still need, and the tags that say so.

Purpose: snapshot expiry must not take from a stream what it has still to read. Iceberg does not know its readers.

How it works: a tag keeps one snapshot and not those after it, while a reader walks from its position to the newest
snapshot and fails ("Cannot find snapshot after …: not an ancestor of table's current snapshot") when one is missing in
between. So the plan has two parts: tags for the snapshots at which readers stand, and `keep_since`, the time from which
on every snapshot stays. `keep_since` protects readers from our own expiry; the tags keep the data of their position
from anybody else's.

What it does not do: it cannot hold back an expiry that others run on the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sluice.tables.table_observation import ReferenceKind, TableObservation

BEGINNING = -1
"""The snapshot id in the offset of a reader that found the table empty; the oldest listed snapshot takes its place.

Source: Iceberg's `StreamingOffset.START_OFFSET`.
"""


class Knowledge(StrEnum):
    """What is known of a reader. UNKNOWN is never treated as NOT_STARTED."""

    NOT_STARTED = "not_started"
    KNOWN = "known"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderObservation:
    """One input of a stream that reads a table's appended rows.

    position: the snapshot from which the reader would go on at the earliest; set when KNOWN.
    problem: why nothing is known, a sentence; empty otherwise.
    """

    stream: str
    input: str
    knowledge: Knowledge
    position: int | None = None
    problem: str = ""


PIN_PREFIX = "sluice_pin__"
"""Tags with this prefix are the platform's: it moves and removes them."""


class PinKind(StrEnum):
    """Why a snapshot is kept.

    POSITION: a reader goes on from it.
    """

    POSITION = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A snapshot and who needs it. endpoint: the name of the stream's input."""

    kind: PinKind
    stream: str
    endpoint: str
    snapshot_id: int

    @property
    def tag(self) -> str:
        """The name of the tag. Names hold no `__`, so no two owners share one."""
        return _tag(self.kind, self.stream, self.endpoint)


def _tag(kind: PinKind, stream: str, endpoint: str) -> str:
    return f"{PIN_PREFIX}{stream}__{endpoint}__{kind}"


class HoldReason(StrEnum):
    """Why snapshots of a table may not be expired now."""

    READER_NOT_STARTED = "reader_not_started"
    READER_UNKNOWN = "reader_unknown"
    READER_SNAPSHOT_GONE = "reader_snapshot_gone"
    READER_OFF_MAIN = "reader_off_main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One reader that holds expiry back, and why."""

    stream: str
    input: str
    reason: HoldReason
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlan:
    """What to tag and what to keep.

    pins: every pin that is to exist. to_set: those whose tag is missing or elsewhere. to_remove: tags without an owner.
    holds: readers for which nothing may be expired.
    keep_since: every snapshot committed then or later stays; unset when no reader needs any.
    """

    pins: tuple[Pin, ...]
    to_set: tuple[Pin, ...]
    to_remove: tuple[str, ...]
    holds: tuple[Hold, ...]
    keep_since: datetime | None

    @property
    def is_current(self) -> bool:
        """Whether the tags are already as they are to be."""
        return not self.to_set and not self.to_remove


def plan_pins(
    *,
    seen: TableObservation,
    readers: Sequence[ReaderObservation],
    unreadable_streams: Collection[str] = (),
) -> PinPlan:
    """Plan the pins of one table.

    Parameters
    ----------
    readers: every declared input that reads the table as a stream.
    unreadable_streams: streams whose declaration is broken just now: their tags are obeyed and stay as they are.
    """
    pins = list(_reader_pins(readers))
    held = {(reader.stream, reader.input) for reader in readers if reader.knowledge is not Knowledge.KNOWN}
    listed = {snapshot.snapshot_id for snapshot in seen.snapshots}
    tags = {ref.name: ref.snapshot_id for ref in seen.references if _is_pin(ref.name, ref.kind)}
    obeyed = {tag for tag in tags if _owner(tag)[0] in unreadable_streams}
    wanted = {pin.tag for pin in pins}
    return PinPlan(
        pins=tuple(pin for pin in pins if pin.snapshot_id in listed),
        to_set=tuple(pin for pin in pins if pin.snapshot_id in listed and tags.get(pin.tag) != pin.snapshot_id),
        to_remove=tuple(tag for tag in sorted(tags) if tag not in wanted | obeyed and _owner(tag) not in held),
        holds=tuple(_holds(seen, readers)),
        keep_since=_keep_since(seen, [*(pin.snapshot_id for pin in pins), *(tags[tag] for tag in obeyed)]),
    )


def _is_pin(name: str, kind: ReferenceKind) -> bool:
    return kind is ReferenceKind.TAG and name.startswith(PIN_PREFIX) and name.count("__") == 3


def _owner(tag: str) -> tuple[str, str]:
    """The stream and the endpoint that a tag is named after."""
    stream, endpoint, _ = tag.removeprefix(PIN_PREFIX).split("__")
    return stream, endpoint


def _reader_pins(readers: Sequence[ReaderObservation]) -> Iterator[Pin]:
    for reader in readers:
        if reader.position is not None and reader.position != BEGINNING:
            yield Pin(kind=PinKind.POSITION, stream=reader.stream, endpoint=reader.input, snapshot_id=reader.position)


def _holds(seen: TableObservation, readers: Sequence[ReaderObservation]) -> Iterator[Hold]:
    main = {snapshot.snapshot_id for snapshot in seen.main_line}
    listed = {snapshot.snapshot_id for snapshot in seen.snapshots}
    for reader in readers:
        reader_is = f"stream {reader.stream} (input {reader.input})"
        reason, explanation = None, ""
        if reader.knowledge is Knowledge.UNKNOWN:
            reason = HoldReason.READER_UNKNOWN
            explanation = f"it is not known how far {reader_is} has read: {reader.problem}"
        elif reader.knowledge is Knowledge.NOT_STARTED or reader.position == BEGINNING:
            reason = HoldReason.READER_NOT_STARTED
            explanation = f"{reader_is} has read nothing yet and begins with the oldest snapshot"
        elif reader.position not in listed:
            reason = HoldReason.READER_SNAPSHOT_GONE
            explanation = f"{reader_is} goes on from snapshot {reader.position}, which was expired or removed"
        elif reader.position not in main:
            reason = HoldReason.READER_OFF_MAIN
            explanation = f"{reader_is} goes on from snapshot {reader.position}, which main no longer leads to"
        if reason is not None:
            yield Hold(stream=reader.stream, input=reader.input, reason=reason, explanation=explanation)


def _keep_since(seen: TableObservation, needed: Collection[int]) -> datetime | None:
    """The earliest commit time on main from the oldest needed snapshot on.

    The clocks of several writers need not agree, so a later snapshot may carry an earlier time.
    """
    line = seen.main_line
    depth = max((number for number, snapshot in enumerate(line) if snapshot.snapshot_id in needed), default=None)
    return None if depth is None else min(snapshot.committed_at for snapshot in line[: depth + 1])
