"""How values are written as text: nothing is cut, trimmed or rounded, and a reader gets back what was written.

Spark's own defaults write three of the six digits of a second, trim the fields of csv and escape its quotation marks by
a backslash.
"""

from __future__ import annotations

from collections.abc import Mapping

TIMES: Mapping[str, str] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""ISO 8601 with microseconds, which is all that a timestamp of Spark and Iceberg holds."""

JSON_TEXT: Mapping[str, str] = {**TIMES, "ignoreNullFields": "false"}
"""The options of JSON objects. Nulls are kept: without them a null value and a missing column would look the same."""

CSV_TEXT: Mapping[str, str] = {
    **TIMES,
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""The options of csv, as RFC 4180 says: a quotation mark is doubled. A null is an empty field, a text without
characters is `""`."""
