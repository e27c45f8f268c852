"""Decides which tags and branches of people and other programs are too old to keep their snapshots. Pure.

Iceberg knows no time at which a tag was set: the age of a tag is that of its snapshot, here as in Iceberg's own
`max-ref-age-ms`, which a reference may have beside this and which expiry obeys by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from pyiceberg.table.refs import MAIN_BRANCH

from sluice.declarations.maintenance_declaration import ExpiryDeclaration
from sluice.stored_keys import ADOPTION_TAG_PREFIX, PIN_PREFIX, REFRESH_TAG_PREFIX
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, TableObservation

_OURS = (PIN_PREFIX, REFRESH_TAG_PREFIX, ADOPTION_TAG_PREFIX)


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
