"""A user's function as an output.

*Guarantee*: at least once. The function receives the batch's key, the same when the batch runs again. A function that
records the key with what it writes can make that exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import PythonOutput
from sluice.errors import DeliveryError, SluiceError
from sluice.ledger.batches import PublicationKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSink:
    """Calls a function with `(rows: DataFrame, batch: PublicationKey)`."""

    output: str
    declared: PythonOutput
    function: Callable[[DataFrame, PublicationKey], object]

    @property
    def place(self) -> str:
        """The destination of the rows, for messages."""
        return f"the function {self.declared.function}"

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there."""
        return False

    def mismatches(self, rows: StructType) -> list[str]:
        """Every schema is passed to the function."""
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
        except Exception as error:  # whatever the user's function raises is reported with its name
            raise DeliveryError(f"Batch {key}: {self.place} raised {type(error).__name__}: {error}.") from error
