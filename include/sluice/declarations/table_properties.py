"""Iceberg's table properties that a declaration may give, each with the values that Iceberg takes.

A misspelt property does nothing and says nothing; so a name that is not known here belongs under
`unchecked_properties`. What would break the platform belongs nowhere.

Source: https://iceberg.apache.org/docs/latest/configuration/ and `org.apache.iceberg.TableProperties` of the pinned
version, with which `tests/spark/session/test_known_properties.py` compares this list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sluice.declarations.error_messages import did_you_mean
from sluice.messages import SECRET_NAME, holds_secret, one_line

LONGEST_VALUE = 4000
"""The characters of a value: every snapshot's metadata file repeats it."""

_FLAG = "true|false"
_COUNT = "[0-9]{1,10}"
_SIZE = "[1-9][0-9]{0,17}"
_FRACTION = r"0?\.[0-9]{1,6}|0|1(\.0)?"
_MODE = "copy-on-write|merge-on-read"
_DISTRIBUTION = "none|hash|range"
_ISOLATION = "serializable|snapshot"
_CODEC = "zstd|gzip|snappy|lz4|brotli|uncompressed|none|zlib|lzo"
_PLANNING = "auto|local|distributed"
_METRICS = r"none|counts|full|truncate\([1-9][0-9]{0,4}\)"
_FORMAT = "parquet|orc|avro"

_FORMATS_OF_FILES = ("write", "write.delete")

KNOWN: Mapping[str, str] = {
    "commit.manifest-merge.enabled": _FLAG,
    "commit.manifest.min-count-to-merge": _COUNT,
    "commit.manifest.target-size-bytes": _SIZE,
    **{f"commit.retry.{name}-ms": _COUNT for name in ("max-wait", "min-wait", "total-timeout")},
    "commit.retry.num-retries": "[0-9]{1,4}",
    **{f"commit.status-check.{name}-ms": _COUNT for name in ("max-wait", "min-wait", "total-timeout")},
    "commit.status-check.num-retries": "[0-9]{1,4}",
    "history.expire.max-ref-age-ms": "[0-9]{1,19}",
    "history.expire.max-snapshot-age-ms": "[0-9]{1,19}",
    "history.expire.min-snapshots-to-keep": _COUNT,
    "read.data-planning-mode": _PLANNING,
    "read.delete-planning-mode": _PLANNING,
    **{f"read.{kind}.vectorization.enabled": _FLAG for kind in ("orc", "parquet")},
    **{f"read.{kind}.vectorization.batch-size": _COUNT for kind in ("orc", "parquet")},
    "read.split.adaptive-size.enabled": _FLAG,
    **{f"read.split.{name}": _SIZE for name in ("metadata-target-size", "open-file-cost", "target-size")},
    "read.split.planning-lookback": _COUNT,
    **{f"write.{verb}.mode": _MODE for verb in ("delete", "merge", "update")},
    **{f"write.{verb}.isolation-level": _ISOLATION for verb in ("delete", "merge", "update")},
    **{f"write.{verb}distribution-mode": _DISTRIBUTION for verb in ("", "delete.", "merge.", "update.")},
    "write.delete.granularity": "file|partition",
    "write.format.default": "parquet",
    "write.delete.format.default": _FORMAT,
    **{f"{way}.target-file-size-bytes": _SIZE for way in _FORMATS_OF_FILES},
    **{f"{way}.{kind}.compression-codec": _CODEC for way in _FORMATS_OF_FILES for kind in ("avro", "orc", "parquet")},
    **{f"{way}.{kind}.compression-level": "-?[0-9]{1,3}" for way in _FORMATS_OF_FILES for kind in ("avro", "parquet")},
    **{f"{way}.orc.compression-strategy": "speed|compression" for way in _FORMATS_OF_FILES},
    **{f"{way}.orc.{name}-size-bytes": _SIZE for way in _FORMATS_OF_FILES for name in ("block", "stripe")},
    **{f"{way}.orc.vectorized.batch-size": _COUNT for way in _FORMATS_OF_FILES},
    **{
        f"{way}.parquet.{name}-size-bytes": _SIZE for way in _FORMATS_OF_FILES for name in ("dict", "page", "row-group")
    },
    **{
        f"{way}.parquet.row-group-check-{name}-record-count": _COUNT
        for way in _FORMATS_OF_FILES
        for name in ("min", "max")
    },
    **{f"{way}.parquet.page-row-limit": _COUNT for way in _FORMATS_OF_FILES},
    **{f"{way}.parquet.page-version": "v1|v2" for way in _FORMATS_OF_FILES},
    "write.orc.bloom.filter.columns": "[A-Za-z0-9_.,]{1,1000}",
    "write.orc.bloom.filter.fpp": _FRACTION,
    "write.parquet.bloom-filter-adaptive-enabled": _FLAG,
    "write.parquet.bloom-filter-max-bytes": _SIZE,
    "write.parquet.row-group-size-track-uncompressed": _FLAG,
    "write.parquet.shred-variants": _FLAG,
    "write.parquet.variant-inference-buffer-size": _COUNT,
    "write.manifest.compression-codec": _CODEC,
    "write.manifest.compression-level": "-?[0-9]{1,3}",
    "write.metadata.compression-codec": "none|gzip",
    "write.metadata.delete-after-commit.enabled": _FLAG,
    "write.metadata.previous-versions-max": "[1-9][0-9]{0,5}",
    "write.metadata.metrics.default": _METRICS,
    "write.metadata.metrics.max-inferred-column-defaults": _COUNT,
    "write.object-storage.enabled": _FLAG,
    "write.object-storage.partitioned-paths": _FLAG,
    "write.spark.advisory-partition-size-bytes": _SIZE,
    "write.spark.fanout.enabled": _FLAG,
    "write.summary.partition-limit": _COUNT,
}
"""The properties by name, each with a pattern for its whole value."""

KNOWN_OF_COLUMNS: Mapping[str, str] = {
    "write.metadata.metrics.column.": _METRICS,
    "write.parquet.bloom-filter-enabled.column.": _FLAG,
    "write.parquet.bloom-filter-fpp.column.": _FRACTION,
    "write.parquet.bloom-filter-ndv.column.": _SIZE,
    "write.parquet.dict-encoding-enabled.column.": _FLAG,
    "write.parquet.stats-enabled.column.": _FLAG,
}
"""The properties that end in the name of a column."""

REFUSED: Mapping[str, str] = {
    "gc.enabled": "with `false` no snapshot expires; write `maintenance: {expiry: null}`",
    "write.wap.enabled": "rows would be written and never shown; the platform audits batches itself",
    "write.location-provider.impl": "it names code that every writer would load",
    "write.spark.accept-any-schema": "the platform compares each batch with the declared columns",
    "write.spark.auto-schema-evolution.enabled": "a table changes with its declaration only",
    "write.upsert.enabled": "it belongs to Flink; write `mode: merge` at the stream's output",
}
_PLATFORM = re.compile(r"sluice\..*|format-version|write\.(data|metadata|object-storage|folder-storage)\.path")


def property_problem(name: str, value: str) -> str | None:
    """Why a checked property is refused; none when Iceberg knows it and takes the value."""
    if (problem := unchecked_property_problem(name, value)) is not None:
        return problem
    pattern = KNOWN.get(name) or next(
        (pattern for prefix, pattern in KNOWN_OF_COLUMNS.items() if name.startswith(prefix) and name != prefix), None
    )
    if pattern is None:
        hint = did_you_mean(name, KNOWN)
        instead = "Iceberg has no such property; one of another engine goes under `unchecked_properties`"
        return f"{instead}. {hint}".rstrip(".") if hint else instead
    if re.fullmatch(pattern, value) is None:
        return f"this property has a value of the form {pattern}"
    return None


def unchecked_property_problem(name: str, value: str) -> str | None:
    """Why a property may not be given at all; none when it may."""
    if _PLATFORM.fullmatch(name):
        return "this property is the platform's and is not declared"
    if name in REFUSED:
        return f"this property is not given: {REFUSED[name]}"
    if SECRET_NAME.search(name) or holds_secret(value):
        return "everybody who may read the table reads its properties, so no secret is one"
    if len(value) > LONGEST_VALUE or value != one_line(value):
        return f"a property's value is one line of at most {LONGEST_VALUE} characters"
    return None
