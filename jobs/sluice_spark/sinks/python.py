"""A function of the user's as an output.

*Promise*: at least once. The function is handed the batch's key, the same when the batch runs again: with it a function
that marks what it wrote makes that exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import PythonOutput
from sluice.errors import DeliveryError, SluiceError
from sluice.ledger.records.stream_batch import PublicationKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSink:
    """A function that takes `(rows: DataFrame, batch: PublicationKey)`."""

    output: str
    declared: PythonOutput
    function: Callable[[DataFrame, PublicationKey], object]

    @property
    def place(self) -> str:
        """Where the rows go, for a person."""
        return f"the function {self.declared.function}"

    def misfits(self, rows: StructType) -> list[str]:
        """What rows fit is the function's business."""
        return []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Call the function.

        Raises
        ------
        DeliveryError: when the function raises.
        """
        try:
            self.function(rows, key)
        except SluiceError:
            raise
        except Exception as error:  # whatever the user's function raises is told with its place
            raise DeliveryError(f"Batch {key}: {self.place} raised {type(error).__name__}: {error}.") from error
