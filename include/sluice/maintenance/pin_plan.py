"""Decides which snapshots of a table its readers still need, plans the tags that keep them, and says what that costs.

Purpose: snapshot expiry must not remove snapshots that a stream has still to read. Iceberg does not know the readers of
a table.

How it works: a tag keeps one snapshot and not the later ones, while a reader reads from its position to the newest
snapshot and fails ("Cannot find snapshot after …: not an ancestor of table's current snapshot") when one in between is
missing. The plan therefore has two parts: tags for the snapshots at which readers are, and `keep_since`, from which
time on every snapshot stays. `keep_since` protects readers from Sluice's own expiry; the tags keep the data of their
position from any other expiry.

A stream sets its own pins as well (`sluice.maintenance.position_pins`), so that it is protected before the first
maintenance. An expiry that another engine runs on the table can still remove snapshots between a position and the
newest one; `sluice.maintenance.retention_plan` asks such engines to keep them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sluice.messages import in_words
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset
from sluice.stored_keys import PIN_PREFIX
from sluice.tables.table_observation import ReferenceKind, TableObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderCost:
    """What one stream holds back beyond the expiry policy of a table.

    snapshots: those that would expire without it.
    replaced_bytes: of files that later snapshots have replaced or removed; they take up space until the snapshots
        expire.
    age: of the oldest of these snapshots.
    """

    stream: str
    endpoint: str
    snapshots: int
    replaced_bytes: int
    age: timedelta

    def __str__(self) -> str:
        return (
            f"stream {self.stream} ({self.endpoint}) holds back {self.snapshots} old snapshots and "
            f"{self.replaced_bytes / 1024**2:,.1f} MiB of replaced files; the oldest is {in_words(self.age)} old"
        )


class Knowledge(StrEnum):
    """Whether the position of a reader is known. UNKNOWN is never treated as NOT_STARTED."""

    NOT_STARTED = "not_started"
    KNOWN = "known"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderObservation:
    """One input of a stream that reads a table's appended rows.

    position: the earliest snapshot from which the reader may continue; set when KNOWN.
    offset: the whole offset of the position, where one is recorded.
    problem: why the position is unknown; empty otherwise.
    """

    stream: str
    input: str
    knowledge: Knowledge
    position: int | None = None
    offset: StreamOffset | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterObservation:
    """An output of a stream with `delivery: direct`. position: the newest snapshot that its sink wrote."""

    stream: str
    output: str
    position: int


class PinKind(StrEnum):
    """Why a snapshot is kept.

    POSITION: a reader continues from it.
    WRITTEN: the newest one that Iceberg's own sink wrote for a stream; by it the sink recognises a repeated batch.
    NAMED, AS_OF: a static input names it by its id, or by a time.
    """

    POSITION = "position"
    WRITTEN = "written"
    NAMED = "named"
    AS_OF = "as_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A snapshot and the stream that needs it. endpoint: the name of the stream's input, or of its output.

    label: of a time, from `as_of_label`; empty for the other kinds.
    """

    kind: PinKind
    stream: str
    endpoint: str
    snapshot_id: int
    label: str = ""

    @property
    def tag(self) -> str:
        """The name of the tag. Names do not contain `__`, so it is unique."""
        return f"{PIN_PREFIX}{self.stream}__{self.endpoint}__{self.kind}{self.label}"


def as_of_label(as_of: datetime) -> str:
    """The end of the tag of a time, for example `_20260101t120000000000z`. A time without a zone is in UTC."""
    aware = as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
    return f"_{aware.astimezone(UTC):%Y%m%dt%H%M%S%fz}"


def is_tag_of(tag: str, as_of: datetime) -> bool:
    """Whether a tag keeps the snapshot that was current at a time, for whichever stream."""
    return tag.startswith(PIN_PREFIX) and tag.endswith(f"__{PinKind.AS_OF}{as_of_label(as_of)}")


class HoldReason(StrEnum):
    """Why snapshots of a table may not be expired now."""

    READER_NOT_STARTED = "reader_not_started"
    READER_UNKNOWN = "reader_unknown"
    READER_SNAPSHOT_GONE = "reader_snapshot_gone"
    READER_OFF_MAIN = "reader_off_main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One reader that prevents expiry, and why."""

    stream: str
    input: str
    reason: HoldReason
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlan:
    """The snapshots to tag and to keep.

    pins: every required pin.
    to_set: those whose tag is missing or on another snapshot.
    to_remove: tags without a pin.
    holds: the readers that prevent any expiry.
    keep_since: every snapshot committed then or later stays; unset when no reader needs one.
    properties: of the table, to set with the tags (`sluice.maintenance.retention_plan`).
    """

    pins: tuple[Pin, ...]
    to_set: tuple[Pin, ...]
    to_remove: tuple[str, ...]
    holds: tuple[Hold, ...]
    keep_since: datetime | None
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_current(self) -> bool:
        """Whether the tags and the properties are already as planned."""
        return not self.to_set and not self.to_remove and not self.properties


def plan_pins(
    *,
    seen: TableObservation,
    readers: Sequence[ReaderObservation],
    writers: Sequence[WriterObservation] = (),
    named: Sequence[Pin] = (),
    kept_streams: Collection[str] = (),
) -> PinPlan:
    """Plan the pins of one table.

    Parameters
    ----------
    readers: every declared input that reads the table as a stream.
    writers: every declared output that Iceberg's own sink writes into the table, and that may repeat a batch.
    named: of the static inputs that name a snapshot; each keeps that one alone.
    kept_streams: streams whose declaration cannot be read now, or that run without being declared any more: their tags
        are respected and not changed.
    """
    pins = [*_reader_pins(readers), *_writer_pins(writers)]
    held = {(reader.stream, reader.input) for reader in readers if reader.knowledge is not Knowledge.KNOWN}
    listed = {snapshot.snapshot_id for snapshot in seen.snapshots}
    tags = {ref.name: ref.snapshot_id for ref in seen.references if _is_pin(ref.name, ref.kind)}
    obeyed = {tag for tag in tags if _owner(tag)[0] in kept_streams}
    read_on = [tag for tag in obeyed if _is_read_on(tag)]
    every = [*pins, *named]
    wanted = {pin.tag for pin in every}
    return PinPlan(
        pins=tuple(pin for pin in every if pin.snapshot_id in listed),
        to_set=tuple(pin for pin in every if pin.snapshot_id in listed and tags.get(pin.tag) != pin.snapshot_id),
        to_remove=tuple(tag for tag in sorted(tags) if tag not in wanted | obeyed and _owner(tag) not in held),
        holds=tuple(_holds(seen, readers)),
        keep_since=_keep_since(seen, [*(pin.snapshot_id for pin in pins), *(tags[tag] for tag in read_on)]),
    )


def _is_pin(name: str, kind: ReferenceKind) -> bool:
    return kind is ReferenceKind.TAG and name.startswith(PIN_PREFIX) and name.count("__") == 3


def _is_read_on(tag: str) -> bool:
    """Whether a stream reads on from the snapshot of a tag, and needs the later ones too."""
    return not tag.rpartition("__")[2].startswith((PinKind.NAMED, PinKind.AS_OF))


def _owner(tag: str) -> tuple[str, str]:
    """The stream and the endpoint that a tag is named after."""
    stream, endpoint, _ = tag.removeprefix(PIN_PREFIX).split("__")
    return stream, endpoint


def _reader_pins(readers: Sequence[ReaderObservation]) -> Iterator[Pin]:
    for reader in readers:
        if reader.position is not None and reader.position != BEGINNING:
            yield Pin(kind=PinKind.POSITION, stream=reader.stream, endpoint=reader.input, snapshot_id=reader.position)


def _writer_pins(writers: Sequence[WriterObservation]) -> Iterator[Pin]:
    for writer in writers:
        yield Pin(kind=PinKind.WRITTEN, stream=writer.stream, endpoint=writer.output, snapshot_id=writer.position)


def plan_own_pins(
    *,
    main_line: Sequence[int],
    tags: Mapping[str, int],
    readers: Sequence[ReaderObservation],
    writers: Sequence[WriterObservation],
) -> tuple[Pin, ...]:
    """The pins that a stream sets itself, where they are not in place yet.

    A reader that has read nothing begins with the oldest snapshot, so it pins that one. A position that is not on main
    cannot be read from; its tag stays where it is, as the evidence of what was read.

    Parameters
    ----------
    main_line: the snapshots of main, newest first. tags: the table's tags. readers, writers: those of the stream.
    """
    if not main_line:
        return ()
    started = [
        replace(reader, position=main_line[-1]) if _is_at_the_beginning(reader) else reader for reader in readers
    ]
    pins = [*_reader_pins(started), *_writer_pins(writers)]
    return tuple(pin for pin in pins if pin.snapshot_id in main_line and tags.get(pin.tag) != pin.snapshot_id)


def _is_at_the_beginning(reader: ReaderObservation) -> bool:
    return reader.knowledge is Knowledge.NOT_STARTED or reader.position == BEGINNING


def _holds(seen: TableObservation, readers: Sequence[ReaderObservation]) -> Iterator[Hold]:
    main = {snapshot.snapshot_id for snapshot in seen.main_line}
    listed = {snapshot.snapshot_id for snapshot in seen.snapshots}
    for reader in readers:
        reader_is = f"stream {reader.stream} (input {reader.input})"
        reason, explanation = None, ""
        if reader.knowledge is Knowledge.UNKNOWN:
            reason = HoldReason.READER_UNKNOWN
            explanation = f"the position of {reader_is} is unknown: {reader.problem}"
        elif _is_at_the_beginning(reader):
            reason = HoldReason.READER_NOT_STARTED
            explanation = f"{reader_is} has read nothing yet and starts with the oldest snapshot"
        elif reader.position not in listed:
            reason = HoldReason.READER_SNAPSHOT_GONE
            explanation = f"{reader_is} continues from snapshot {reader.position}, which was expired or removed"
        elif reader.position not in main:
            reason = HoldReason.READER_OFF_MAIN
            explanation = f"{reader_is} continues from snapshot {reader.position}, which is not an ancestor of main"
        if reason is not None:
            yield Hold(stream=reader.stream, input=reader.input, reason=reason, explanation=explanation)


def _keep_since(seen: TableObservation, needed: Collection[int]) -> datetime | None:
    """The earliest commit time on main from the oldest needed snapshot on.

    The clocks of several writers may differ, so a later snapshot may have an earlier time.
    """
    line = seen.main_line
    depth = max((number for number, snapshot in enumerate(line) if snapshot.snapshot_id in needed), default=None)
    return None if depth is None else min(snapshot.committed_at for snapshot in line[: depth + 1])


def reader_costs(
    seen: TableObservation, pins: tuple[Pin, ...], *, cutoff: datetime, retain_last: int
) -> tuple[ReaderCost, ...]:
    """What each pin holds back, the most snapshots first; none for a reader that holds back nothing.

    Parameters
    ----------
    cutoff, retain_last: of the table's expiry policy: what is newer, or among the last ones, would stay anyway.
    """
    found = sorted(_costs(seen, pins, cutoff, retain_last), key=lambda cost: (-cost.snapshots, cost.stream))
    return tuple(found)


def _costs(seen: TableObservation, pins: tuple[Pin, ...], cutoff: datetime, retain_last: int) -> Iterator[ReaderCost]:
    line = seen.main_line
    depths = {snapshot.snapshot_id: number for number, snapshot in enumerate(line)}
    for pin in pins:
        if pin.kind in (PinKind.NAMED, PinKind.AS_OF):
            continue  # it keeps one snapshot and holds no later one back
        depth = depths.get(pin.snapshot_id)
        if depth is None:
            continue
        held = [one for one in line[retain_last : depth + 1] if one.committed_at < cutoff]
        if held:
            yield ReaderCost(
                stream=pin.stream,
                endpoint=pin.endpoint,
                snapshots=len(held),
                replaced_bytes=sum(one.removed_bytes for one in line[:depth]),
                age=seen.observed_at - min(one.committed_at for one in held),
            )
