"""`maintenance.yaml`: what the maintenance of all tables, and of those of a namespace, has in common; and if it fits.

    defaults ◄── all_tables ◄── namespaces.<namespace> ◄── `maintenance` of the table

Of each key the nearest value holds. `null` turns a part off, a key below it turns the part on again. A window is one
value: its start belongs to its end. A file that cannot be read stands for no maintenance at all: by the defaults,
snapshots would expire that it keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import ByteSize, Field

from sluice.declarations.declaration_files import Document, KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration, MaintenanceWindow
from sluice.declarations.scalar_types import Declared, Name, duration_words
from sluice.errors import DeclarationError
from sluice.messages import Location

POLICY_FILE = "maintenance.yaml"

_NOTHING = MaintenanceDeclaration(compaction=None, manifest_rewrite=None, expiry=None, orphan_removal=None)


class PolicyDeclaration(Declared):
    """The maintenance that tables have in common. What a table declares itself is nearer."""

    all_tables: MaintenanceDeclaration = Field(MaintenanceDeclaration(), description="of every table")
    namespaces: dict[Name, MaintenanceDeclaration] = Field(
        default_factory=dict, description="of the tables of a namespace, nearer than `all_tables`"
    )


class PolicyOrigin(StrEnum):
    """Where a value of a table's maintenance comes from, the nearest first."""

    TABLE = "table"
    NAMESPACE = "namespace"
    ALL_TABLES = "all_tables"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyValue:
    """A value that holds for a table. key: such as `expiry.older_than`. value: in words. place: unset for a default."""

    key: str
    value: str
    origin: PolicyOrigin
    place: Location | None = None

    def as_json(self) -> dict[str, Any]:
        """The value for a program."""
        place = None if self.place is None else str(self.place)
        return {"key": self.key, "value": self.value, "origin": str(self.origin), "place": place}

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place is not None else ""
        return f"{self.key}: {self.value}, {self.origin}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What one place says of the maintenance of a table, and nothing that it leaves open."""

    origin: PolicyOrigin
    said: Mapping[str, Any]
    document: Document | None
    path: KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMaintenance:
    """What a table declares itself.

    is_sorted: whether it has a sort order. z_orderable: the columns by which its rows can be z-ordered.
    times: the columns by whose times it is partitioned. countable: the columns whose distinct values are counted.
    document: unset for a quarantine.
    """

    table: str
    declared: MaintenanceDeclaration = field(default_factory=MaintenanceDeclaration)
    is_sorted: bool = False
    z_orderable: frozenset[str] = frozenset()
    times: frozenset[str] = frozenset()
    countable: frozenset[str] = frozenset()
    document: Document | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """The policy of a deployment. document: unset without a file. is_broken: whether it cannot be read.

    kept_whole: the tables of which no rows go, although it says so, because something blocks it.
    """

    declaration: PolicyDeclaration = field(default_factory=PolicyDeclaration)
    document: Document | None = field(default=None, compare=False)
    is_broken: bool = False
    kept_whole: frozenset[str] = frozenset()

    def maintenance_of(self, own: OwnMaintenance) -> MaintenanceDeclaration:
        """What holds for a table."""
        if self.is_broken:
            return _NOTHING
        merged: dict[str, Any] = {}
        for layer in reversed(self._layers(own)):
            merged = _merged(layer.said, over=merged)
        if own.table in self.kept_whole:
            merged["retention"] = None
        return MaintenanceDeclaration.model_validate(merged)

    def values_of(self, own: OwnMaintenance) -> tuple[PolicyValue, ...]:
        """What holds for a table, key by key, with where each value comes from. What is unset is left out."""
        layers = self._layers(own)
        return tuple(
            _with_origin(path, value, layers)
            for path, value in _leaves(self.maintenance_of(own), ())
            if value is not None or _sayer(path, layers) is not None
        )

    def _layers(self, own: OwnMaintenance) -> tuple[_Layer, ...]:
        """The nearest first. Of what others say, the strategy `sort` is for tables that have a sort order, `z_order`
        for those that have its columns, the column of a retention for those that are partitioned by it, and of the
        columns of statistics those that a table has. The nearest strategy brings its columns, or none."""
        namespace = own.table.partition(".")[0]
        shared = self.declaration
        of_namespace = shared.namespaces.get(namespace, MaintenanceDeclaration())
        layers = (
            _Layer(origin=PolicyOrigin.TABLE, said=_said(own.declared), document=own.document, path=("maintenance",)),
            _Layer(
                origin=PolicyOrigin.NAMESPACE,
                said=_shared(of_namespace, own),
                document=self.document,
                path=("namespaces", namespace),
            ),
            _Layer(
                origin=PolicyOrigin.ALL_TABLES,
                said=_shared(shared.all_tables, own),
                document=self.document,
                path=("all_tables",),
            ),
        )
        nearest = next((place for place, one in enumerate(layers) if "strategy" in _compaction(one.said)), len(layers))
        return tuple(
            replace(one, said=_without(one.said, "z_order")) if place > nearest else one
            for place, one in enumerate(layers)
        )


def shared_column_problems(policy: LoadedPolicy, tables: Sequence[OwnMaintenance]) -> Iterator[DeclarationError]:
    """The columns that fit no table: what is said of them would silently never hold.

    Parameters
    ----------
    tables: what each declared table says itself.
    """
    for path, declared in _places(policy):
        owns = [one for one in tables if path[0] == "all_tables" or one.table.startswith(f"{path[1]}.")]
        retention, compaction = declared.retention, declared.compaction
        if retention is not None and retention.column is not None:
            times = [one.times for one in owns]
            yield from _unfit(policy, (*path, "retention", "column"), [retention.column], times, "is partitioned by")
        if compaction is not None and compaction.z_order:
            columns = [one.z_orderable for one in owns]
            yield from _unfit(
                policy, (*path, "compaction", "z_order"), compaction.z_order, columns, "can be ordered by"
            )


def _places(policy: LoadedPolicy) -> Iterator[tuple[KeyPath, MaintenanceDeclaration]]:
    yield ("all_tables",), policy.declaration.all_tables
    yield from ((("namespaces", name), one) for name, one in policy.declaration.namespaces.items())


def _unfit(
    policy: LoadedPolicy, path: KeyPath, named: Sequence[str], fitting: Sequence[Collection[str]], what: str
) -> Iterator[DeclarationError]:
    """fitting: the columns of each table that it is for, of which one that has all the named ones is enough."""
    if not fitting or policy.document is None or any(set(named) <= set(one) for one in fitting):
        return
    known = sorted(set().union(*fitting))
    wrong = next((name for name in named if name not in known), named[0])
    yield DeclarationError(
        f"`{key_text(path)}`: no table that it is for {what} {', '.join(named)}.",
        location=policy.document.location(path),
        next_step=did_you_mean(wrong, known),
    )


def _said(declared: MaintenanceDeclaration) -> Mapping[str, Any]:
    return declared.model_dump(exclude_unset=True)


def _shared(declared: MaintenanceDeclaration, own: OwnMaintenance) -> Mapping[str, Any]:
    """What a place says of the maintenance of several tables, as far as it is for this one."""
    said = _said(declared)
    compaction, retention = _compaction(said), said.get("retention")
    cannot_sort = compaction.get("strategy") == "sort" and not own.is_sorted
    if cannot_sort or not own.z_orderable.issuperset(compaction.get("z_order") or ()):
        said = _without(said, "strategy", "z_order")
    if retention is not None and retention.get("column") not in (None, *own.times):
        said = {**said, "retention": {key: value for key, value in retention.items() if key != "column"}}
    statistics = said.get("statistics")
    if statistics is not None and statistics.get("columns") is not None:
        columns = tuple(name for name in statistics["columns"] if name in own.countable)
        said = {**said, "statistics": {**statistics, "columns": columns}}
    return said


def _compaction(said: Mapping[str, Any]) -> Mapping[str, Any]:
    return said.get("compaction") or {}


def _without(said: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """What is said but for some keys of the compaction. One that is turned off stays off."""
    compaction = said.get("compaction")
    if compaction is None:
        return said
    return {**said, "compaction": {key: value for key, value in compaction.items() if key not in keys}}


def _merged(near: Mapping[str, Any], *, over: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **over,
        **{
            key: {**over[key], **value} if _has_keys(key, value) and _has_keys(key, over.get(key)) else value
            for key, value in near.items()
        },
    }


def _has_keys(key: str, value: object) -> bool:
    return isinstance(value, Mapping) and key != "window"


def _leaves(part: Declared, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Declared) and not isinstance(value, MaintenanceWindow):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _with_origin(path: tuple[str, ...], value: object, layers: tuple[_Layer, ...]) -> PolicyValue:
    layer, key = _sayer(path, layers), ".".join(path)
    if layer is None:
        return PolicyValue(key=key, value=_words(value), origin=PolicyOrigin.DEFAULT)
    place = None if layer.document is None else layer.document.location((*layer.path, *path))
    return PolicyValue(key=key, value=_words(value), origin=layer.origin, place=place)


def _sayer(path: tuple[str, ...], layers: tuple[_Layer, ...]) -> _Layer | None:
    """Who says a value; none for a default. One that turns the whole part off ends the search."""
    for layer in layers:
        part: Any = layer.said
        for key in path:
            if part is None:
                return None
            if not isinstance(part, Mapping) or key not in part:
                break
            part = part[key]
        else:
            return layer
    return None


def _words(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, timedelta):
        return duration_words(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return value.human_readable(separator=" ") if isinstance(value, ByteSize) else str(value)
