"""Makes staged files fit their target: schemas by field id, partition specs and sort orders by what they say.

The numbers of specs and sort orders are a table's own, so a staged file's are translated. A target may have evolved
since a batch was staged; then the batch goes in as it would have before, under the older spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField, PrimitiveType

from sluice.errors import UnpublishableError
from sluice.publication.staged_batches import StagedBatch
from sluice.tables.table_changes import is_wider

_FORMAT_VERSION: Literal[2] = 2


def fit_files(files: Iterable[DataFile], *, staging: Table, target: Table) -> tuple[DataFile, ...]:
    """The files as entries of the target, each with the number of its spec there.

    Raises
    ------
    UnpublishableError: when the target never had the spec that a file was staged under.
    """
    specs: dict[int, int] = {}
    fitted = []
    for file in files:
        if file.spec_id not in specs:
            specs[file.spec_id] = _spec_in(target, staging, file.spec_id)
        values = {field.name: file[place] for place, field in enumerate(DATA_FILE_TYPE[_FORMAT_VERSION].fields)}
        values["sort_order_id"] = _sort_order_in(target.metadata, staging.metadata, file.sort_order_id)
        copy = DataFile.from_args(_table_format_version=_FORMAT_VERSION, **values)
        copy.spec_id = specs[file.spec_id]
        fitted.append(copy)
    return tuple(fitted)


def refuse_unfit_schema(batches: Sequence[StagedBatch], *, staging: Table, target: Table) -> None:
    """Refuse batches whose rows the target would show wrongly: a column that is gone, narrower, or newly required.

    Raises
    ------
    UnpublishableError: naming the batch and the columns.
    """
    wanted = target.schema()
    for schema_id, batch in {_schema_id(staging, batch): batch for batch in batches}.items():
        staged = staging.schemas()[schema_id]
        if staged == wanted or not (problems := list(_schema_problems(staged, wanted))):
            continue
        raise UnpublishableError(
            f"Batch {batch.summary.key} was staged under another schema of {'.'.join(target.name())}: "
            f"{'; '.join(problems)}.",
            next_step="Bring the table back to its declaration; a column is never dropped, narrowed or made required.",
        )


def _schema_id(staging: Table, batch: StagedBatch) -> int:
    snapshot = staging.snapshot_by_id(batch.snapshot_id)
    if snapshot is None or snapshot.schema_id is None:
        return staging.metadata.current_schema_id
    return snapshot.schema_id


def _schema_problems(staged: Schema, wanted: Schema) -> Iterable[str]:
    before, after = index_by_id(staged), index_by_id(wanted)
    for field_id, field in before.items():
        now = after.get(field_id)
        if now is None:
            yield f"the column {staged.find_column_name(field_id)} is gone"
        elif not _holds_all_values_of(now, field):
            yield f"the column {staged.find_column_name(field_id)} was {field.field_type} and is {now.field_type}"
    for field_id, field in after.items():
        if field.required and (field_id not in before or before[field_id].optional):
            yield f"the column {wanted.find_column_name(field_id)} is required"


def _holds_all_values_of(now: NestedField, before: NestedField) -> bool:
    match now.field_type, before.field_type:
        case PrimitiveType() as after, PrimitiveType() as earlier:
            return after == earlier or is_wider(after, than=earlier)
        case after, earlier:  # what is inside has field ids of its own
            return type(after) is type(earlier)


def _spec_in(target: Table, staging: Table, staged_spec_id: int) -> int:
    staged = staging.specs()[staged_spec_id]
    default = target.spec()
    for spec in (default, *target.specs().values()):
        if spec.fields == staged.fields:
            return spec.spec_id
    raise UnpublishableError(
        f"Files of {'.'.join(staging.name())} were staged under the partition spec {staged}, which "
        f"{'.'.join(target.name())} never had.",
        next_step="See who changed the staging table: it is written by its own stream only.",
    )


def _sort_order_in(target: TableMetadata, staging: TableMetadata, staged_order_id: int | None) -> int | None:
    staged = staging.sort_order_by_id(staged_order_id) if staged_order_id is not None else None
    if staged is None:
        return None
    return next((order.order_id for order in target.sort_orders if order.fields == staged.fields), None)
