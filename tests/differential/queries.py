"""The queries of a case. Both engines understand the text of the rows; what follows them is written for each."""

from __future__ import annotations

from textwrap import indent

from tests.differential.case import Case, Output

_SHIFT = 1_000_000
"""Added to the number of a row that a union brings a second time, so that the two differ."""


def rows_query(case: Case, *, records: str, lookup: str) -> str:
    """The rows before the step, in SQL that both engines read in the same way.

    Parameters
    ----------
    records, lookup: the names of the tables, or `{records}` for `spark.sql`.
    """
    return "".join(_named_and_rows(case, records=records, lookup=lookup))


def _named_and_rows(case: Case, *, records: str, lookup: str) -> tuple[str, str]:
    """The common table expressions, and the query that reads them."""
    named, relation = _relation(case, records)
    columns = [f"r.{name}" for name in case.source_columns]
    joined = ""
    conditions = [case.where] if case.where else []
    match case.join:
        case "inner" | "left":
            joined = f"\n{case.join.upper()} JOIN {lookup} AS l ON l.k2 = r.k2"
            columns.append("l.label")
        case "semi":
            conditions.append(f"r.k2 IN (SELECT l.k2 FROM {lookup} AS l WHERE l.k2 IS NOT NULL)")
        case "anti":
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {lookup} AS l WHERE l.k2 = r.k2)")
    if case.computed is not None:
        columns.append(f"{case.computed.sql} AS x")
    where = f"\nWHERE {' AND '.join(f'({one})' for one in conditions)}" if conditions else ""
    return named, f"SELECT {', '.join(columns)}\nFROM {relation} AS r{joined}{where}"


def _relation(case: Case, records: str) -> tuple[str, str]:
    """What stands before the query, and what it reads."""
    names = list(case.source_columns)
    shifted = ", ".join(f"n + {_SHIFT} AS n" if name == "n" else name for name in names)
    same = ", ".join(names)
    match case.shape:
        case "plain":
            return "", records
        case "cte":
            turned = ", ".join(
                reversed(names)
            )  # with its columns in their order, a name is easily taken for the source
            return f"WITH named AS (SELECT * FROM {records}), again AS (SELECT {turned} FROM named)\n", "again"
        case "union":
            return "", _union(f"SELECT {same} FROM {records} WHERE v < 2", f"SELECT {same} FROM {records} WHERE v >= 2")
        case "shifted":
            return "", _union(f"SELECT {same} FROM {records}", f"SELECT {shifted} FROM {records} WHERE v > 1")
        case "cte_union":
            both = _union(f"SELECT {same} FROM named WHERE v >= 1", f"SELECT {shifted} FROM named WHERE v IS NULL")
            return f"WITH named AS (SELECT * FROM {records})\n", both


def _union(first: str, second: str) -> str:
    return f"({first} UNION ALL {second})"


AGGREGATED = (
    "CAST(count(*) AS BIGINT) AS seen, CAST(sum(v) AS BIGINT) AS total, "
    "CAST(sum(d) AS DECIMAL(19, 2)) AS spent, min(word) AS lowest, max(n) AS newest"
)
"""The aggregates, in both engines."""


def columns_of(case: Case, output: Output) -> list[str]:
    """The columns that the rows of an output have."""
    return [*case.output_columns, *(["op"] if output.is_feed else [])]


def has_one_query(case: Case) -> bool:
    """Whether the transformation is one query in a file of SQL, as users write most of them."""
    return len(case.outputs) == 1 and case.step.kind != "dedupe"


def sql_transformation(case: Case) -> str:
    """The transformation of a stream with one output, as a query."""
    (output,) = case.outputs
    named, rows = _named_and_rows(case, records="records", lookup="lookup")
    return f"{named}{_selected(case, output, _stepped(case, rows))}"


def python_transformation(case: Case) -> str:
    """The transformation of a stream, as a function."""
    given = "records, lookup" if case.join is not None else "records"
    passed = ", ".join(f"{name}={name}" for name in given.split(", "))
    named, rows = _named_and_rows(case, records="{records}", lookup="{lookup}")
    query = f"{named}{_stepped(case, rows)}"
    lines = [
        f"def transform({given}):",
        '    rows = records.sparkSession.sql(r"""',
        indent(query, "        "),
        f'    """, {passed})',
    ]
    if case.step.kind == "dedupe":
        lines.append(f"    rows = rows.dropDuplicates({list(case.step.by)!r}).select({list(case.step.by)!r})")
    results = [
        f"        {f'output{number}'!r}: rows{f'.where({output.where!r})' if output.where else ''}"
        f".select({columns_of(case, output)!r}),"
        for number, output in enumerate(case.outputs)
    ]
    return "\n".join([*lines, "    return {", *results, "    }", ""])


def _selected(case: Case, output: Output, query: str) -> str:
    where = f"\nWHERE {output.where}" if output.where else ""
    return f"SELECT {', '.join(columns_of(case, output))} FROM (\n{indent(query, '  ')}\n){where}\n"


def _stepped(case: Case, rows: str) -> str:
    """The rows after the step, for Spark."""
    by = list(case.step.by)
    match case.step.kind:
        case "group":
            return f"SELECT {', '.join([*by, AGGREGATED])} FROM (\n{rows}\n)\nGROUP BY {', '.join(by)}"
        case "window":
            size, slide = case.step.size_seconds, case.step.slide_seconds
            lengths = f"'{size} seconds'" + (f", '{slide} seconds'" if slide != size else "")
            window = f"window(moment, {lengths})"
            columns = ["window.start AS opened", "window.end AS closed", *by, AGGREGATED]
            return f"SELECT {', '.join(columns)} FROM (\n{rows}\n)\nGROUP BY {', '.join([window, *by])}"
    return rows
