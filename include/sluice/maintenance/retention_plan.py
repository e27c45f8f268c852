"""Plans how many snapshots a table asks every expiry to keep, and which old tags and branches keep none.

Purpose: a pin keeps one snapshot and none after it. An expiry that Sluice does not run can remove snapshots between the
position of a reader and the newest one, and the reader cannot continue then.

How it works: Iceberg has two table properties for this. Spark's `expire_snapshots` and other tools take them where the
caller gives no value of its own: `history.expire.min-snapshots-to-keep` for `retain_last`, and
`history.expire.max-snapshot-age-ms` for `older_than`. Both are kept at twice to four times what the slowest reader
needs, so that they change rarely, and never below the table's own expiry policy.

Whose value it is: a value in the table's declaration always stays. `sluice.kept-for-readers` holds the values that were
set here; another value was set by a person, and is raised when it is too low and never lowered.

What it does not do: pyiceberg's expiry, and callers that give both values, do not read the properties.

Source: https://iceberg.apache.org/docs/latest/configuration/#table-behavior-properties

Iceberg knows no time at which a tag was set: the age of a tag is that of its snapshot, here as in Iceberg's own
`max-ref-age-ms`, which a reference may have beside this and which expiry obeys by itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from pyiceberg.table.refs import MAIN_BRANCH

from sluice.declarations.maintenance_declaration import ExpiryDeclaration
from sluice.stored_keys import ADOPTION_TAG_PREFIX, KEPT_FOR_READERS, PIN_PREFIX, REFRESH_TAG_PREFIX
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, TableObservation

MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
MAX_AGE_MS = "history.expire.max-snapshot-age-ms"
_ICEBERG_DEFAULTS = {MIN_SNAPSHOTS: 1, MAX_AGE_MS: 5 * 24 * 3600 * 1000}
_HOUR_MS = 3600 * 1000

_OURS = (PIN_PREFIX, REFRESH_TAG_PREFIX, ADOPTION_TAG_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOnMain:
    """A snapshot of main, as far as retention is concerned."""

    snapshot_id: int
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionNeed:
    """What the slowest reader needs: the newest `snapshots` of main, the oldest of which is `age` old."""

    snapshots: int
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRetention:
    """A declared property that keeps fewer snapshots than a reader needs now."""

    name: str
    declared: int
    needed: int

    def __str__(self) -> str:
        return f"`{self.name}` is declared as {self.declared}, and the slowest reader needs {self.needed}"


def need_of(needed: Collection[int], *, main_line: tuple[SnapshotOnMain, ...], now: datetime) -> RetentionNeed | None:
    """What must be kept so that every needed snapshot stays reachable; none when main has no needed one.

    Parameters
    ----------
    needed: the positions of readers. main_line: the snapshots of main, newest first.
    """
    depth = max((number for number, seen in enumerate(main_line) if seen.snapshot_id in needed), default=None)
    if depth is None:
        return None
    # The clocks of writers differ, so a later snapshot may have an earlier time.
    oldest = min(seen.committed_at for seen in main_line[: depth + 1])
    return RetentionNeed(snapshots=depth + 1, age=max(now - oldest, timedelta(0)))


def plan_retention(
    *,
    properties: Mapping[str, str],
    declared: Collection[str],
    need: RetentionNeed | None,
    policy: ExpiryDeclaration | None,
) -> Mapping[str, str]:
    """The properties to set on a table; none when those that it has are enough and not far too much.

    Parameters
    ----------
    properties: of the table. declared: the names that its declaration sets; they stay.
    need: of the readers; none leaves what is there.
    policy: the table's expiry; none when it is unknown here: then nothing is lowered.
    """
    if need is None:
        return {}
    ours = _values_in(properties.get(KEPT_FOR_READERS, ""))
    changed = {}
    for name, needed, floor in _needs(need, policy):
        current = _number(properties.get(name), _ICEBERG_DEFAULTS[name])
        is_too_low = current < max(floor, ceil(needed * 1.25))
        is_too_high = policy is not None and current > max(floor, 8 * needed) and ours.get(name) == current
        if name not in declared and (is_too_low or is_too_high):
            changed[name] = max(floor, _rounded(name, 2 * needed), _ICEBERG_DEFAULTS[name])
    changed = {name: value for name, value in changed.items() if str(value) != properties.get(name)}
    if not changed:
        return {}
    noted = json.dumps(ours | changed, sort_keys=True)
    return {name: str(value) for name, value in changed.items()} | {KEPT_FOR_READERS: noted}


def short_retentions(
    *, properties: Mapping[str, str], declared: Collection[str], need: RetentionNeed | None
) -> tuple[ShortRetention, ...]:
    """The declared properties that keep less than the slowest reader needs. They stay, and are reported."""
    if need is None:
        return ()
    found = (
        ShortRetention(name=name, declared=_number(properties.get(name), _ICEBERG_DEFAULTS[name]), needed=needed)
        for name, needed, _ in _needs(need, None)
        if name in declared
    )
    return tuple(one for one in found if one.declared < one.needed)


def _needs(need: RetentionNeed, policy: ExpiryDeclaration | None) -> Iterator[tuple[str, int, int]]:
    """Each property with what the readers need, and with the least that the table's policy asks for."""
    age_ms = ceil(need.age / timedelta(milliseconds=1))
    yield MIN_SNAPSHOTS, need.snapshots, 1 if policy is None else policy.retain_last
    yield MAX_AGE_MS, age_ms, 0 if policy is None else ceil(policy.older_than / timedelta(milliseconds=1))


def _rounded(name: str, value: int) -> int:
    """A round value that is not lower: a power of two, or whole hours."""
    if name == MAX_AGE_MS:
        return ceil(value / _HOUR_MS) * _HOUR_MS
    return 1 << max(value - 1, 0).bit_length()


def _values_in(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except ValueError:  # there is none, or another writer changed it: then no value is known to be ours
        return {}
    return {str(name): int(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise


def old_references(
    policy: ExpiryDeclaration, seen: TableObservation, *, named: Collection[str] | None, now: datetime
) -> tuple[ReferenceObservation, ...]:
    """The references that are removed, in the order of their names.

    Parameters
    ----------
    named: the tags that inputs name; unset while a stream may read any. All references stay then.
    """
    if named is None:
        return ()
    committed = {snapshot.snapshot_id: snapshot.committed_at for snapshot in seen.snapshots}
    ages = {ReferenceKind.TAG: policy.tags, ReferenceKind.BRANCH: policy.branches}

    def is_old(reference: ReferenceObservation) -> bool:
        age, at = ages[reference.kind], committed.get(reference.snapshot_id)
        is_free = reference.name != MAIN_BRANCH and reference.name not in named and not reference.name.startswith(_OURS)
        return is_free and age is not None and at is not None and now - at > age

    return tuple(reference for reference in seen.references if is_old(reference))


def kept_references(
    policy: ExpiryDeclaration | None, seen: TableObservation, *, unknown: Sequence[str], now: datetime
) -> Iterator[str]:
    """Why old references stay, for a person.

    Parameters
    ----------
    unknown: the streams that may read any tag.
    """
    old = () if policy is None or not unknown else old_references(policy, seen, named=(), now=now)
    if old:
        why = f"{' and '.join(unknown)} may read any tag: the declaration cannot be read, or is not the one that runs"
        yield f"{', '.join(one.name for one in old)}: old enough to go, but kept, because {why}"


def without(seen: TableObservation, references: Collection[ReferenceObservation]) -> TableObservation:
    """The table as it is once some references are gone."""
    return replace(seen, references=tuple(one for one in seen.references if one not in references))
