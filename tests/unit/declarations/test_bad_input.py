"""What a person reads who wrote a declaration wrongly: one changed line, one exact sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

S = "silver_flights.stream.yaml"
T = "bronze.flights.table.yaml"
A_NAME = (
    "a name starts with a lower-case letter, continues with lower-case letters, digits and single underscores, "
    "and has at most 63 characters"
)
A_DURATION = "a duration is a whole number and a unit: milliseconds, seconds, minutes, hours or days"
A_COLUMN_TYPE = (
    "this is not a column type; allowed are boolean, int, long, float, double, date, timestamp, timestamptz, string, "
    "uuid, binary, decimal(precision, scale), fixed[length], list<type>, map<type, type> and struct<name: type, …>"
)

BAD_STREAMS = [
    (
        "owner: flights",
        "ownr: flights",
        [
            f"{S}:1: the declaration lacks the key `owner` (who answers for it). Add `owner`.",
            f"{S}:3: `ownr`: unknown key `ownr`; allowed here: backfill, description, engine, inputs, masked_columns, "
            "mode, outputs, owner, quarantine, quarantine_retention, rules, schedule, state, stream, supervision, "
            "tags, transformation, trigger. Did you mean `owner`?",
        ],
    ),
    ("owner: flights", "owner: [flights]", [f"{S}:3: `owner`: needs text, got a list."]),
    ("owner: flights", "owner:", [f"{S}:3: `owner`: needs text, got nothing."]),
    (
        "mode: continuous",
        "mode: continous",
        [f"{S}:4: `mode`: needs continuous or incremental, got 'continous'. Did you mean `continuous`?"],
    ),
    (
        "mode: continuous",
        "mode: incremental",
        [f"{S}:1: an incremental stream needs the key `schedule`: a cron, tables, or both."],
    ),
    (
        "trigger: {processing_time: 2 seconds}",
        "tags: []",
        [f"{S}:1: a continuous stream needs the key `trigger`, for example `processing_time: 2 seconds`."],
    ),
    (
        "trigger: {processing_time: 2 seconds}",
        "trigger: {available_now: true}",
        [
            f"{S}:5: `trigger.available_now`: this trigger ends by itself: it belongs to an incremental stream, "
            "got true."
        ],
    ),
    (
        "mode: continuous",
        "mode: incremental\nschedule: {cron: '@daily'}",
        [
            f"{S}:6: `trigger.processing_time`: this trigger never ends: it belongs to a continuous stream, "
            "got '2 seconds'."
        ],
    ),
    (
        "mode: continuous\ntrigger: {processing_time: 2 seconds}",
        "mode: incremental\nschedule: {cron: 61 * * * *}",
        [
            f"{S}:5: `schedule.cron`: a cron has the five fields minute, hour, day, month, weekday, or is a preset "
            "such as @hourly, got '61 * * * *'."
        ],
    ),
    (
        "mode: continuous\ntrigger: {processing_time: 2 seconds}",
        "mode: incremental\nschedule: {}",
        [f"{S}:5: `schedule`: a schedule names a cron, tables, or both."],
    ),
    ("2 seconds", "2", [f"{S}:5: `trigger.processing_time`: {A_DURATION}, got 2."]),
    ("2 seconds", "0 seconds", [f"{S}:5: `trigger.processing_time`: {A_DURATION}, got '0 seconds'."]),
    ("2 seconds", "soon", [f"{S}:5: `trigger.processing_time`: {A_DURATION}, got 'soon'."]),
    ("  airlines:", "  Airlines:", [f"{S}:11: `inputs.Airlines`: {A_NAME}, got 'Airlines'."]),
    (
        "iceberg: {table: bronze.flights}",
        "iceberg: {table: flights}",
        [
            f"{S}:9: `inputs.flights.stream.iceberg.table`: a table is named <namespace>.<table>, each part of "
            "lower-case letters, digits and underscores, got 'flights'."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "iceberg: {table: bronze.flights, tag: blue}",
        [f"{S}:9: `inputs.flights.stream.iceberg.tag`: does not belong to a stream input, got 'blue'."],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "iceberg: {table: bronze.flights, starting: {snapshot_id: 7, tag: blue}}",
        [
            f"{S}:9: `inputs.flights.stream.iceberg.starting`: exactly one of snapshot_id, tag is needed, got "
            "snapshot_id, tag, got a mapping."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "iceberg: {table: bronze.flights, starting: latest, from_timestamp: 2026-01-31T00:00:00Z}",
        [
            f"{S}:9: `inputs.flights.stream.iceberg.from_timestamp`: unknown key `from_timestamp`; allowed here: "
            "as_of, max_files_per_batch, max_rows_per_batch, on_delete, on_overwrite, snapshot_id, starting, table, "
            "tag, value, value_column."
        ],
    ),
    (
        "iceberg: {table: reference.airlines}",
        "iceberg: {table: reference.airlines, starting: latest}",
        [f"{S}:13: `inputs.airlines.static.iceberg.starting`: does not belong to a static input, got 'latest'."],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "kafka: {connection: k}",
        [
            f"{S}:9: `inputs.flights.stream.kafka`: exactly one of topics, topic_pattern, assignment is needed, "
            "got none."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "kafka: {connection: k, topics: [a b]}",
        [
            f"{S}:9: `inputs.flights.stream.kafka.topics[0]`: needs text of the form ^[A-Za-z0-9._-]{{1,249}}$, "
            "got 'a b'."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "kafka: {connection: k, topics: [a], starting: soon}",
        [
            f"{S}:9: `inputs.flights.stream.kafka.starting`: needs earliest or latest or a time such as "
            "2026-01-31T12:00:00Z or a mapping of keys to values, got 'soon'."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "kafka: {connection: k, topics: [a], password: tiger}",
        [
            f"{S}:9: `inputs.flights.stream.kafka.password`: unknown key `password`; allowed here: assignment, "
            "connection, headers, isolation, max_offsets_per_batch, min_offsets_per_batch, on_data_loss, starting, "
            "topic_pattern, topics, value."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "kafka: {connection: k, topics: [a], max_offsets_per_batch: 0}",
        [f"{S}:9: `inputs.flights.stream.kafka.max_offsets_per_batch`: needs a number above 0, got 0."],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "kafka: {connection: k, topics: [a], max_offsets_per_batch: 5, min_offsets_per_batch: 9}",
        [f"{S}:9: `inputs.flights.stream.kafka.min_offsets_per_batch`: is at most max_offsets_per_batch, 5, got 9."],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "files: {connection: landing, path: ../etc, format: parquet}",
        [
            f"{S}:9: `inputs.flights.stream.files.path`: a path lies below its connection's folder: no leading slash, "
            "no `..`, got '../etc'."
        ],
    ),
    (
        "iceberg: {table: bronze.flights}",
        "files: {connection: landing, format: json}",
        [
            f"{S}:9: `inputs.flights.stream.files`: columns, or a schema_file, are needed for json: a stream never "
            "guesses its schema."
        ],
    ),
    (
        "iceberg: {table: reference.airlines}",
        "kafka: {connection: k, topics: [a]}",
        [f"{S}:13: `inputs.airlines.static.kafka`: is a stream and cannot be a static input."],
    ),
    (
        "watermark: {column: departure, delay: 6 hours}",
        "refresh: 1 hour",
        [f"{S}:10: `inputs.flights.refresh`: belongs to a static input: a stream input is always new, got '1 hour'."],
    ),
    (
        "    stream:\n",
        "    static:\n",
        [f"{S}:10: `inputs.flights.watermark`: a static input has no watermark: only rows that arrive can be late."],
    ),
    (
        "python: transformations.py:silver_flights",
        "python: /etc/evil.py:f",
        [
            f"{S}:15: `transformation.python`: needs text of the form "
            r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.py:[A-Za-z_][A-Za-z0-9_]*$, got '/etc/evil.py:f'."
        ],
    ),
    (
        "mode: append",
        "mode: mergge",
        [
            f"{S}:18: `outputs.main.iceberg.mode`: needs append, merge, complete or overwrite_partitions, "
            "got 'mergge'. Did you mean `merge`?"
        ],
    ),
    (
        "mode: append",
        "mode: merge",
        [f"{S}:18: `outputs.main.iceberg`: keys are needed for mode merge: they say which row a new one replaces."],
    ),
    (
        "mode: append",
        "keys: [carrier]",
        [
            f"{S}:18: `outputs.main.iceberg`: keys, operation_column, ordering_column and ordering_columns belong to "
            "mode merge."
        ],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier], ordering_column: departure, ordering_columns: [departure]",
        [
            f"{S}:18: `outputs.main.iceberg.ordering_columns`: stands in the place of ordering_column: write one of "
            "the two."
        ],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier], operations: {delete: [D]}",
        [
            f"{S}:18: `outputs.main.iceberg`: operations needs operation_column: it says what the values of that "
            "column mean."
        ],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier], operation_column: op, operations: {delete: [u]}",
        [f"{S}:18: `outputs.main.iceberg.operations`: the operation u is named twice."],
    ),
    (
        "mode: append",
        "mode: merge, keys: [carrier], operation_column: op, operations: {insert: [], update: [], delete: []}",
        [f"{S}:18: `outputs.main.iceberg.operations`: no operation is named, so that every change would be unknown."],
    ),
    (
        "  main:",
        "  quarantine:",
        [f"{S}:17: `outputs.quarantine`: this output's name is the platform's: write `quarantine: true`."],
    ),
    (
        "quarantine: true",
        "  other:\n    iceberg: {table: bronze.flights, mode: merge, keys: [carrier]}",
        [f"{S}:16: `outputs`: one stream has one mode, got main append, other merge: make several streams of it."],
    ),
    (
        "python: transformations.py:silver_flights",
        "sql: flights.sql",
        [
            f"{S}:15: `transformation.sql`: a query has one result, and nothing else rejects rows: no value is "
            "decoded, no line of a file goes to the quarantine, and no rule rejects any. Write `on_malformed: "
            "quarantine` at an input of json or csv files, a rule with `on_failure: quarantine`, or a Python function; "
            "or leave `quarantine` out.",
            f"{S}:15: `transformation.sql`: there is no file flights.sql beside the declaration. Create flights.sql, "
            "or correct the name.",
        ],
    ),
    ("quarantine: true", "quarantine: 5", [f"{S}:19: `quarantine`: needs `true` or `false`, got 5."]),
    (
        "quarantine: true",
        "engine: {driver_memory: 64 MiB}",
        [f"{S}:19: `engine.driver_memory`: needs a number not below 536870912, got '64 MiB'."],
    ),
    (
        "quarantine: true",
        "engine: {driver_memory: lots}",
        [f"{S}:19: `engine.driver_memory`: needs a size such as 512 MiB, got 'lots'."],
    ),
    (
        "quarantine: true",
        "supervision: {restart: {first_delay: 1 hour}}",
        [f"{S}:19: `supervision.restart`: first_delay is at most longest_delay."],
    ),
    (
        "quarantine: true",
        "engine: {options: {spark.my.password: [tiger]}}",
        [f"{S}:19: `engine.options.spark.my.password`: needs text, got something that is not repeated here."],
    ),
]

BAD_TABLES = [
    ("type: string}", "type: strng}", [f"{T}:5: `columns[0].type`: {A_COLUMN_TYPE}, got 'strng'."]),
    (
        "{name: carrier, type: string}",
        "{name: carrier, type: 'decimal(40, 2)'}",
        [
            f"{T}:5: `columns[0].type`: a number from 1 to 38 is needed in the type 'decimal(40, 2)', "
            "got 'decimal(40, 2)'."
        ],
    ),
    (
        "{name: legs, type: list<string>}",
        "{name: Carrier, type: string}",
        [f"{T}:7: `columns[2].name`: the column carrier is declared twice, got 'Carrier'."],
    ),
    (
        "{name: carrier, type: string}",
        "{name: 2nd, type: string}",
        [
            f"{T}:5: `columns[0].name`: a column is named with letters, digits and underscores, and does not start "
            "with a digit, got '2nd'."
        ],
    ),
    (
        "{column: departure, transform: day}",
        "{column: arrival, transform: day}",
        [
            f"{T}:9: `partitioning[0].column`: the table has no column arrival; it has carrier, departure, legs, "
            "got 'arrival'."
        ],
    ),
    (
        "{column: departure, transform: day}",
        "{column: carrier, transform: day}",
        [f"{T}:9: `partitioning[0]`: the transform day takes no column of type string."],
    ),
    (
        "{column: departure, transform: day}",
        "{column: legs}",
        [f"{T}:9: `partitioning[0]`: the transform identity takes no column of type list."],
    ),
    (
        "{column: departure, transform: day}",
        "{column: carrier, transform: bucket}",
        [f"{T}:9: `partitioning[0]`: width is needed for bucket and truncate, and for no other transform."],
    ),
    (
        "  - {column: carrier}",
        "  - {column: carier}",
        [
            f"{T}:11: `sort_order[0].column`: the table has no column carier; it has carrier, departure, legs, "
            "got 'carier'."
        ],
    ),
    (
        "  - {column: carrier}",
        "  - {column: legs}",
        [f"{T}:11: `sort_order[0].column`: rows cannot be sorted by a column of type list, got 'legs'."],
    ),
    (
        'write.target-file-size-bytes: "67108864"',
        "sluice.mark.x: y",
        [f"{T}:13: `properties.sluice.mark.x`: this property is the platform's and is not declared, got 'y'."],
    ),
    (
        'write.target-file-size-bytes: "67108864"',
        "write.data.path: s3://elsewhere",
        [
            f"{T}:13: `properties.write.data.path`: this property is the platform's and is not declared, "
            "got 's3://elsewhere'."
        ],
    ),
    (
        "owner: flights",
        "owner: flights\nmaintenance: {orphan_removal: {older_than: 1 hour}}",
        [
            f"{T}:4: `maintenance.orphan_removal.older_than`: a file that is not yet committed looks like an orphan: "
            "at least 3 days, got '1 hour'."
        ],
    ),
    (
        "owner: flights",
        "owner: flights\nquality: {expectations: []}",
        [f"{T}:4: `quality.expectations`: needs at least 1 entry, got a list."],
    ),
]


@pytest.mark.parametrize(("old", "new", "sentences"), BAD_STREAMS, ids=lambda value: str(value)[:40])
def test_a_bad_stream(valid: Folder, old: str, new: str, sentences: list[str]) -> None:
    file = valid.path / S
    assert old in file.read_text()
    valid.write(S, file.read_text().replace(old, new, 1))
    assert valid.problems() == sentences
    assert valid.load().streams == {}
    assert set(valid.load().tables) == {"bronze.flights", "reference.airlines", "silver.flights"}


@pytest.mark.parametrize(("old", "new", "sentences"), BAD_TABLES, ids=lambda value: str(value)[:40])
def test_a_bad_table(valid: Folder, old: str, new: str, sentences: list[str]) -> None:
    file = valid.path / T
    assert old in file.read_text()
    valid.write(T, file.read_text().replace(old, new, 1))
    assert valid.problems() == sentences
    assert "bronze.flights" not in valid.load().tables
    assert set(valid.load().streams) == {"silver_flights"}, "a broken table takes no stream with it"
