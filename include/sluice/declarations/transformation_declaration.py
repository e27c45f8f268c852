"""The declared work of a stream: its transformation, its row rules, and how the past is processed again."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.scalar_types import (
    ColumnName,
    Declared,
    FunctionReference,
    Name,
    SqlFile,
    one_of,
)


class TransformationDeclaration(Declared):
    """The function or query that computes the outputs from the inputs.

    A Python function takes the inputs by name and returns a DataFrame, or a mapping of output name to DataFrame.
    """

    python: FunctionReference | None = Field(None, description="`<file>.py:<function>` beside the declaration")
    sql: SqlFile | None = Field(None, description="a file with one query, beside the declaration")

    @model_validator(mode="after")
    def _one_language(self) -> Self:
        one_of(self, "python", "sql")
        return self

    @property
    def file_name(self) -> str:
        """The file of the transformation, below the declaration's folder."""
        return (self.python or self.sql or "").partition(":")[0]

    @property
    def function(self) -> str | None:
        """The Python function; SQL has none."""
        return None if self.python is None else self.python.partition(":")[2]


class RuleDeclaration(Declared):
    """A row rule: what is true of a good row, and what becomes of a row for which it is not."""

    name: Name = Field(description="the rule's name, which becomes the reason of a refused row")
    expression: str = Field(description="an SQL expression over the output's columns")
    on_failure: Literal["quarantine", "fail", "hold"] = Field(
        "quarantine", description="refuse the row, fail the run, or hold the batch for a person"
    )


class BackfillDeclaration(Declared):
    """How an interval of the past is processed again."""

    column: ColumnName = Field(description="the target's column whose values an interval covers")
