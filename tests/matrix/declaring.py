"""Writes a combination of input, output, trigger and mode down as a stream is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sluice.declarations.checks.combinations import Combination, refused_parts
from sluice.declarations.declaration_files import read_document
from sluice.declarations.stream_declaration import RECORD_TRIGGERS

WORDS = ("a", "a", "b")
"""What every input holds: so small that all of the time goes into Spark's own work."""

WORD_COLUMNS = [{"name": "word", "type": "string"}]
_WORD = {
    "kafka": "CAST(value AS STRING)",
    "kinesis": "CAST(data AS STRING)",
    "socket": "value",
    "rate": "CAST(value % 2 AS STRING)",
}
"""The word of a row, by the kind of input; the others have a column `word`."""

_ICEBERG_MODES: Mapping[str, Mapping[str, Any]] = {
    "append": {"mode": "append"},
    "update": {"mode": "merge", "keys": ["word"]},
    "complete": {"mode": "complete"},
}
_KIND_OF_WAY = {"iceberg_direct": "iceberg"}
"""The key of an output that can be delivered in two ways."""

_DELTA_MODES = {"append": "append", "complete": "overwrite", "update": "update"}
_TRIGGERS: Mapping[str, Mapping[str, Any]] = {
    "processing_time": {"processing_time": "3 seconds"},
    "available_now": {"available_now": True},
    "once": {"once": True},
    "continuous_processing": {"continuous_processing": "1 second"},
    "real_time": {"real_time": "5 seconds"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The names of what inputs and outputs lie in.

    source: the topic. shards: the Kinesis stream. port: of a socket that hands out the words.
    """

    source_table: str = "bronze.words"
    target_table: str = "silver.words"
    kafka: str = "flights_kafka"
    kinesis: str = "words_kinesis"
    files: str = "words"
    database: str = "words_database"
    source: str = "words"
    shards: str = "words"
    target: str = "out"
    port: int = 9999


def declared_parts(combination: Combination, places: Places) -> dict[str, Any]:
    """The keys of the declaration that a combination decides."""
    bounded = combination.trigger in ("available_now", "once")
    how: dict[str, Any] = {"mode": "incremental", "schedule": {"cron": "@daily"}} if bounded else {"mode": "continuous"}
    return how | {
        "trigger": dict(_TRIGGERS[combination.trigger]),
        "inputs": {"records": {"stream": {combination.input: _source(combination.input, places)}}},
        "outputs": {"words": {_KIND_OF_WAY.get(combination.output, combination.output): _output(combination, places)}},
    }


def query(combination: Combination) -> str:
    """The transformation: each word, or how often it came where a result is kept."""
    word = _WORD.get(combination.input, "word")
    if combination.mode == "append" or combination.trigger in RECORD_TRIGGERS:
        return f"SELECT {word} AS word, CAST(1 AS BIGINT) AS n FROM records"  # noqa: S608  # made of the words above
    return f"SELECT {word} AS word, count(*) AS n FROM records GROUP BY 1"  # noqa: S608  # made of the words above


def expected_rows(combination: Combination) -> list[tuple[str, int]]:
    """What the output holds when all of the words went through."""
    if combination.mode == "append" or combination.trigger in RECORD_TRIGGERS:
        return sorted((word, 1) for word in WORDS)
    return sorted({word: WORDS.count(word) for word in WORDS}.items())


def unbuilt_part(combination: Combination) -> str | None:
    """Why a combination that goes together is refused all the same: a part of it is not built; none when all are."""
    text = yaml.safe_dump(declared_parts(combination, Places()))
    document = read_document(text.encode(), file=Path("combination.stream.yaml"))
    return next((problem.problem for problem in refused_parts(document)), None)


def _source(kind: str, places: Places) -> dict[str, Any]:
    sources: Mapping[str, dict[str, Any]] = {
        "kafka": {"connection": places.kafka, "topics": [places.source]},
        "kinesis": {"connection": places.kinesis, "stream": places.shards},
        "files": {"connection": places.files, "path": "files", "format": "json", "columns": WORD_COLUMNS},
        "iceberg": {"table": places.source_table},
        "delta": {"connection": places.files, "path": "delta"},
        "jdbc": {"connection": places.database, "table": "words"},
        "socket": {"host": "127.0.0.1", "port": places.port},
        "rate": {"rows_per_second": 5},
    }
    return sources[kind]


def _output(combination: Combination, places: Places) -> dict[str, Any]:
    kind, mode = combination.output, combination.mode
    outputs: Mapping[str, dict[str, Any]] = {
        "iceberg": {"table": places.target_table, **_ICEBERG_MODES[mode]},
        "iceberg_direct": {"table": places.target_table, **_ICEBERG_MODES[mode], "delivery": "direct"},
        "delta": {"connection": places.files, "path": places.target, "mode": _DELTA_MODES[mode]},
        "kafka": {"connection": places.kafka, "topic": places.target, "key_column": "word", "mode": mode},
        "files": {"connection": places.files, "path": places.target, "format": "json"}
        | ({} if mode == "append" else {"mode": mode}),
        "console": {"mode": mode},
        "memory": {"mode": mode},
        "python": {"function": "noting.py:note", "mode": mode},
        "hudi": {"table": places.target_table},
    }
    return outputs[kind]
