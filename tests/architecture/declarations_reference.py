"""`docs/declarations.md`, made from the models of declarations: every key with its type, default and meaning.

Write it again with `python -m tests.architecture.declarations_reference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sluice.declarations.checks.combinations import NOT_YET, NotYetPart
from sluice.declarations.input_declaration import meaningless_sources
from sluice.declarations.scalar_types import (
    ColumnName,
    ColumnPath,
    Cron,
    Description,
    Duration,
    Flag,
    FunctionReference,
    Name,
    Owner,
    RelativePath,
    SchemaFile,
    SqlFile,
    TableName,
    Tag,
    Time,
    WholeNumber,
)
from sluice.declarations.source_declarations import Offset, Partition, TopicName
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.declarations.value_declaration import MessageName, SubjectName

FILE = Path(__file__).parents[2] / "docs" / "declarations.md"

INTRODUCTION = """\
# Declarations

A stream is declared in `<stream>.stream.yaml`, a table in `<namespace>.<table>.table.yaml`, in any folder below
`include/pipelines/`. The file's name is the thing's name. `sluice validate` checks them all and names file, line and
key of every mistake; a file with a mistake hides no other. `sluice table create` makes tables as they are declared,
and never drops a table or a column.

A name has lower-case letters, digits and single underscores. A duration is `2 seconds`, `6 hours`, `1 day`. A size is
`64 MiB`. Scalars are read as YAML 1.2 has them: `no` and `on` are text. Aliases and tags are refused.

What the maintenance of all tables, or of those of a namespace, has in common stands in `maintenance.yaml` in the top
folder, under `all_tables` and `namespaces.<namespace>`, with the keys of `maintenance` below. Of each key the nearest
value holds: the table's own, then its namespace's, then that of all tables, then the default. `null` turns a part off;
a `window` is inherited as a whole; an inherited `strategy: sort` is for the tables with a `sort_order`, and
`strategy: z_order` for those with its columns. `sluice table show` and `sluice table plan` name the place of every
value. While the file cannot be read, no table is maintained; where a stream blocks an inherited `retention`,
the rows of that table stay.

A key marked *not yet* belongs to the design and is refused with its reason until it works.

```yaml
# silver_orders.stream.yaml
stream: silver_orders
description: Orders, each once.
owner: shop-data
mode: continuous
trigger: {processing_time: 5 seconds}
inputs:
  records:
    stream:
      iceberg: {table: bronze.orders}
transformation: {sql: silver_orders.sql}
outputs:
  orders:
    iceberg: {table: silver.orders, mode: merge, keys: [order_id]}
```

```yaml
# silver.orders.table.yaml
table: silver.orders
description: A row is an order.
owner: shop-data
columns:
  - {name: order_id, type: long, required: true}
  - {name: ordered_at, type: timestamptz}
  - {name: total, type: "decimal(12, 2)", doc: in euros}
partitioning:
  - {column: ordered_at, transform: day}
quality:
  expectations:
    - {type: expect_column_values_to_be_unique, kwargs: {column: order_id}}
```

```yaml
# maintenance.yaml
all_tables:
  window: {start: "20:00", end: "04:00", time_zone: Europe/Berlin}
namespaces:
  silver:
    expiry: {older_than: 10 days}
```
"""

_WORDS: tuple[tuple[Any, str], ...] = (
    (Name, "name"),
    (TableName, "table"),
    (ColumnName, "column"),
    (ColumnPath, "column path"),
    (Duration, "duration"),
    (Cron, "cron"),
    (RelativePath, "path"),
    (FunctionReference, "function"),
    (SqlFile, "file"),
    (SchemaFile, "file"),
    (TopicName, "topic"),
    (SubjectName, "text"),
    (MessageName, "message"),
    (ByteSize, "size"),
    (Time, "time"),
    (datetime, "time"),
    (Flag, "true or false"),
    (WholeNumber, "whole number"),
    (Offset, "whole number"),
    (Partition, "whole number"),
    (Description, "text"),
    (Owner, "text"),
    (Tag, "text"),
    (bool, "true or false"),
    (int, "whole number"),
    (float, "number"),
    (str, "text"),
    (Any, "anything"),
)
_MEANINGLESS = meaningless_sources()
_PARTS = {part.path: part for part in NOT_YET}


def render() -> str:
    """The whole page."""
    sections = [*_sections(StreamDeclaration, ()), *_sections(TableDeclaration, ())]
    return "\n".join([INTRODUCTION, *sections])


def _sections(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    """A section for each place where keys are written, in the order in which a reader meets them."""
    title = _title(path) or f"<{'stream' if model is StreamDeclaration else 'table'}>"
    yield f"## `{title}`\n\n{_first_sentences(model)}\n\n| key | value | when unset | meaning |\n|---|---|---|---|"
    hints = get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        if ".".join((*path, name)) in _MEANINGLESS:
            continue
        yield f"| `{name}` | {_type_words(hints[name])} | {_when_unset(field)} | {_meaning(field, (*path, name))} |"
    yield ""
    for name in model.model_fields:
        for inner, below in _models_in(hints[name], (*path, name)):
            if not ".".join(below).startswith((*_PARTS, *_MEANINGLESS)) and inner.model_fields:
                yield from _sections(inner, below)


def _title(path: tuple[str, ...]) -> str:
    """The place of a section: entries of mappings have a name, entries of lists have none."""
    lists = ("columns", "rules", "partitioning", "sort_order", "expectations")
    text = ""
    for before, part in zip(("", *path), path, strict=False):
        text += "[]" if part == "*" and before in lists else f".{'<name>' if part == '*' else part}"
    return text.removeprefix(".")


def _models_in(hint: Any, path: tuple[str, ...]) -> Iterator[tuple[type[BaseModel], tuple[str, ...]]]:
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint, path
    elif origin in (Union, UnionType):
        for choice in inner:
            yield from _models_in(choice, path)
    elif origin is dict:
        yield from _models_in(inner[1], (*path, "*"))
    elif origin is tuple:
        yield from _models_in(inner[0], (*path, "*"))


def _first_sentences(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n    Source:")[0].split())


def _type_words(hint: Any) -> str:
    for known, word in _WORDS:
        if hint == known:
            return word
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_type_words(choice) for choice in inner if choice is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{str(choice).lower() if choice is True else choice}`" for choice in inner)
    if origin is tuple:
        return f"list of {_type_words(inner[0])}"
    if origin is dict:
        return f"mapping of {_type_words(inner[0])} to {_type_words(inner[1])}"
    if origin is Annotated:
        return _type_words(inner[0])
    return "keys"


def _when_unset(field: FieldInfo) -> str:
    default = field.default
    if field.is_required():
        return "needed"
    made = field.default_factory
    if isinstance(default, BaseModel) or (isinstance(made, type) and issubclass(made, BaseModel)):
        return "its defaults"
    if field.default_factory_takes_validated_data:
        return "by other keys"
    if default is None or default is PydanticUndefined or default == ():
        return "none"
    if isinstance(default, timedelta):
        return f"`{_duration_words(default)}`"
    if isinstance(default, ByteSize):
        return f"`{default.human_readable(separator=' ')}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default != "" else "empty"


def _duration_words(duration: timedelta) -> str:
    for unit, seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, rest = divmod(int(duration.total_seconds()), seconds)
        if count and not rest:
            return f"{count} {unit}{'s' * (count != 1)}"
    raise ValueError(duration)


def _meaning(field: FieldInfo, path: tuple[str, ...]) -> str:
    part = _PARTS.get(".".join(path))
    return f"{field.description}{_note(part)}"


def _note(part: NotYetPart | None) -> str:
    return "" if part is None else f" (*not yet*: {part.reason})"


if __name__ == "__main__":
    FILE.write_text(render())
