"""How the rows of a staged batch become visible, as it was declared when the batch was staged.

A declaration may change between a crash and the next start. A batch that was staged to be appended must not replace
what the table holds, and one that was staged for a table must not go into another.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.declarations.iceberg_output import IcebergOutput
from sluice.errors import DeliveryError
from sluice.stored_keys import STAGED_MODE


class StagedMode(BaseModel):
    """The part of an output's declaration that decides how a batch is published.

    It is JSON in a snapshot's summary for as long as the batch is staged: fields may be added, never renamed.

    table: `<namespace>.<table>`, the target. The others belong to mode `merge`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    mode: Literal["append", "merge", "complete", "overwrite_partitions"]
    table: str
    keys: tuple[str, ...] = ()
    ordering_column: str | None = Field(None, alias="ordering-column")
    ordering_columns: tuple[str, ...] = Field((), alias="ordering-columns")
    operation_column: str | None = Field(None, alias="operation-column")

    @classmethod
    def of(cls, declared: IcebergOutput) -> StagedMode:
        """The mode of an output as it is declared."""
        return cls(
            mode=declared.mode,
            table=declared.table,
            keys=declared.keys,
            ordering_column=declared.ordering_column,
            ordering_columns=declared.ordering_columns,
            operation_column=declared.operation_column,
        )

    def applied_to(self, declared: IcebergOutput) -> IcebergOutput:
        """A declaration with this mode, whatever it says today."""
        return declared.model_copy(update=self.model_dump())

    def text(self) -> str:
        """The entry of the summary."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)


def read_mode(text: str | None) -> StagedMode | None:
    """The mode from the entry of a summary; none when there is no entry.

    Raises
    ------
    DeliveryError: when the entry cannot be read.
    """
    if text is None:
        return None
    try:
        return StagedMode.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DeliveryError(
            f"The entry {STAGED_MODE} of a staged batch cannot be read: {problem['msg']} (got {text[:200]!r}).",
            next_step="Use the version of Sluice that staged it, or a later one.",
        ) from error
