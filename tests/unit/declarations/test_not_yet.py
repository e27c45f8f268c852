"""Every key of the models either works or is refused with a reason; none is silently ignored."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from sluice.declarations.checks.combinations import NOT_YET, NotYetPart
from sluice.declarations.input_declaration import meaningless_sources
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import NotYetError

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

_WORKS_BELOW = {
    "": (
        "stream",
        "description",
        "owner",
        "tags",
        "mode",
        "quarantine",
        "masked_columns",
        "quarantine_retention.resolved",
        "quarantine_retention.open",
        "table",
        "properties",
        "drop",
        "unchecked_properties",
        "unusual_rows",
        "filters",
    ),
    "rules.*.": (
        "name",
        "expression",
        "type",
        "kwargs",
        "on_failure",
        "severity",
        "owner",
        "description",
        "output",
    ),
    "schedule.": ("cron", "tables"),
    "trigger.": ("processing_time", "available_now", "once", "continuous_processing", "real_time"),
    "transformation.": ("python", "sql"),
    "inputs.*.watermark.": ("column", "delay", "max_ahead"),
    "backfill.": ("column", "interval", "reads", "margin", "follows", "at_once", "balance"),
    "inputs.*.stream.rate.": ("rows_per_second",),
    "inputs.*.stream.kafka.": (
        "connection",
        "topics",
        "topic_pattern",
        "assignment",
        "starting",
        "headers",
        "max_offsets_per_batch",
        "min_offsets_per_batch",
        "isolation",
        "on_data_loss",
    ),
    "inputs.*.": ("refresh",),
    "inputs.*.stream.files.": (
        "connection",
        "path",
        "format",
        "header",
        "on_malformed",
        "on_unknown_field",
        "max_files_per_batch",
        "latest_first",
        "on_changed",
        "afterwards",
        "archive_path",
        "schema_file",
    ),
    "inputs.*.stream.files.columns.*.": ("name", "type", "required", "doc", "unit", "field"),
    "inputs.*.static.files.": ("connection", "path", "format", "header", "schema_file"),
    "inputs.*.static.files.columns.*.": ("name", "type", "required", "doc", "unit", "field"),
    "inputs.*.stream.delta.": ("connection", "path", "from_timestamp", "max_files_per_batch"),
    "inputs.*.static.delta.": ("connection", "path", "version", "as_of"),
    "inputs.*.static.jdbc.": ("connection", "table"),
    **{
        f"inputs.*.stream.{kind}.value.": (
            "format",
            "schema_file",
            "subject",
            "version",
            "registry",
            "message",
            "on_unknown_field",
            "tombstones",
            "decoding_timeout",
            "decoding_tries",
            *(f"columns.*.{key}" for key in ("name", "type", "required", "doc", "unit", "field")),
        )
        for kind in ("kafka", "kinesis", "iceberg")
    },
    "inputs.*.stream.kinesis.": ("connection", "stream", "starting", "max_records_per_batch"),
    "inputs.*.stream.socket.": ("host", "port"),
    "inputs.*.stream.iceberg.": (
        "table",
        "on_overwrite",
        "on_delete",
        "starting.snapshot_id",
        "starting.tag",
        "value_column",
        "max_rows_per_batch",
        "max_files_per_batch",
    ),
    "inputs.*.static.iceberg.": ("table", "snapshot_id", "tag", "as_of"),
    "outputs.*.iceberg.": (
        "table",
        "mode",
        "keys",
        "operation_column",
        "ordering_column",
        "ordering_columns",
        "publish_every",
        "max_held_batches",
        "delivery",
    ),
    "outputs.*.iceberg.operations.": ("insert", "update", "delete"),
    "outputs.*.kafka.": (
        "connection",
        "topic",
        "topic_column",
        "key_column",
        "value_column",
        "headers_column",
        "mode",
    ),
    "outputs.*.files.": ("connection", "path", "format"),
    "outputs.*.delta.": ("connection", "path", "mode"),
    "outputs.*.console.": ("rows", "mode"),
    "outputs.*.memory.": ("mode",),
    "outputs.*.python.": ("function", "mode"),
    "state.": ("provider", "changelog", "shuffle_partitions", "version", "backup_every"),
    "supervision.restart.": ("attempts", "first_delay", "longest_delay", "stable_after"),
    "supervision.": ("stall_after", "on_stall"),
    "supervision.max_lag.": ("rows", "duration", "action"),
    "supervision.max_rejected.": ("rows", "share", "window", "action"),
    "supervision.breaker.": ("failures", "window"),
    "engine.": (
        "connection",
        "driver_memory",
        "cores",
        "executors",
        "most_executors",
        "executor_memory",
        "spot_nodes",
        "ui",
        "kept_minutes",
        "options",
    ),
    "columns.*.": ("name", "type", "required", "doc", "renamed_from"),
    "partitioning.*.": ("column", "transform", "width"),
    "sort_order.*.": ("column", "direction", "nulls"),
    "quality.": ("on_publication",),
    "quality.expectations.*.": ("type", "kwargs"),
    "maintenance.": ("content_check_bytes",),
    "maintenance.retention.": ("column", "older_than"),
    "maintenance.compaction.": (
        "target_file_bytes",
        "min_input_files",
        "strategy",
        "z_order",
        "max_deleted_share",
        "leave_recent",
    ),
    "maintenance.orphan_removal.": ("older_than", "every"),
    "maintenance.statistics.": ("columns", "older_than"),
    "maintenance.manifest_rewrite.": ("min_manifests",),
    "maintenance.expiry.": ("older_than", "retain_last", "tags", "branches"),
    "maintenance.window.": ("start", "end", "days", "time_zone"),
}
WORKS = frozenset(f"{above}{key}" for above, keys in _WORKS_BELOW.items() for key in keys)
"""The keys that this version obeys. A key belongs here when a test of the part that obeys it says so."""

IMPOSSIBLE = tuple(meaningless_sources())


def leaves(annotation: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every key that can be written below a value of this type."""
    origin, inner = get_origin(annotation), get_args(annotation)
    models = [choice for choice in (inner if origin in (Union, UnionType) else (annotation,)) if _leads_on(choice)]
    if not models:
        yield ".".join(path)
    for model in models:
        origin, inner = get_origin(model), get_args(model)
        if isinstance(model, type) and issubclass(model, BaseModel):
            for name, field in model.model_fields.items():
                yield from leaves(field.annotation, (*path, name))
            if not model.model_fields:
                yield ".".join(path)
        else:
            yield from leaves(inner[1] if origin is dict else inner[0], (*path, "*"))


def _leads_on(annotation: Any) -> bool:
    """Whether models lie below: a mapping of plain values is one key to us."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return False
    if origin in (dict, tuple):
        return any(isinstance(one, type) and issubclass(one, BaseModel) for one in inner)
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


KEYS = sorted({*leaves(StreamDeclaration), *leaves(TableDeclaration)})
REFUSED = {part.path: part for part in NOT_YET}


def part_of(key: str) -> NotYetPart | None:
    """The line of the table that is about this key or one above it."""
    parents = key.split(".")
    return next((REFUSED[path] for n in range(len(parents), 0, -1) if (path := ".".join(parents[:n])) in REFUSED), None)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_works_or_is_refused(key: str) -> None:
    works = key in WORKS
    impossible = key.startswith(IMPOSSIBLE)
    refused = part_of(key) is not None
    assert works + impossible + refused == 1, f"{key}: works {works}, impossible {impossible}, refused {refused}"


def test_the_table_and_the_set_name_keys_that_exist() -> None:
    assert set(KEYS) >= WORKS
    for path in REFUSED:
        assert any(key == path or key.startswith(f"{path}.") for key in KEYS), path


def test_each_part_has_one_line_and_a_reason() -> None:
    assert len(REFUSED) == len(NOT_YET)
    assert all(part.reason and part.instead for part in NOT_YET)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "iceberg: {table: silver.flights, mode: append}",
            "hudi: {table: silver.flights}",
            "silver_flights.stream.yaml:18: `outputs.main.hudi` does not work yet: no Hudi bundle exists for Spark 4. "
            "Write into an Iceberg table.",
        ),
    ],
)
def test_a_refusal_names_the_place_and_the_reason(valid: Folder, old: str, new: str, sentence: str) -> None:
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, file.read_text().replace(old, new, 1))
    assert valid.problems() == [sentence]
    assert isinstance(valid.load().problems[0], NotYetError)
