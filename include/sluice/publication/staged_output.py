"""Names one Iceberg output of a stream: its target, its staging table, and the property that holds its mark."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.declarations.values import is_name, is_table_name
from sluice.errors import DeliveryError

STAGING_NAMESPACE = "staging"
"""The namespace of the staging tables of a catalog."""

MARK_PROPERTY_PREFIX = "sluice.mark."
"""Table properties with this prefix are marks: nobody but publication writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutput:
    """One output of a stream and the table it becomes visible in.

    stream, output: their names; the output of refused rows is called `quarantine`.
    target: `<namespace>.<table>` in the catalog.

    Raises
    ------
    DeliveryError: when a name holds what must not reach SQL, a path or a table property.
    """

    stream: str
    output: str
    target: str

    def __post_init__(self) -> None:
        for what, name in (("stream", self.stream), ("output", self.output)):
            if not is_name(name):
                raise DeliveryError(f"The name of the {what} cannot be used for a staging table: got {name!r}.")
        if not is_table_name(self.target):
            raise DeliveryError(
                f"The target of {self.stream}.{self.output} is not <namespace>.<table>: {self.target!r}."
            )

    def __str__(self) -> str:
        return f"{self.stream}.{self.output}"

    @property
    def staging(self) -> str:
        """The identifier of the staging table. No name holds `__`, so no two outputs share one."""
        return f"{STAGING_NAMESPACE}.{self.stream}__{self.output}"

    @property
    def mark_property(self) -> str:
        """The property of the target that holds the mark."""
        return f"{MARK_PROPERTY_PREFIX}{self.stream}.{self.output}"
