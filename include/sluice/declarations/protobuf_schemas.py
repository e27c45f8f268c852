"""Protobuf schemas: compiled by protoc, the columns that a message becomes, and which messages a reader can decode.

Source: https://protobuf.dev/reference/protobuf/proto3-spec/
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from sluice.declarations.column_types import DEEPEST_TYPE
from sluice.declarations.value_declaration import Column

_COMPILE_SECONDS = 60.0
_LOG_LINE = re.compile(r"\[libprotobuf|WARNING: All log messages before absl|[IWEF]\d{4} \d\d:\d\d:")
"""How a line of protoc's log begins: its time and its thread are another one each time."""

_SCALARS: Mapping[int, str] = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT64: "long",
    FieldDescriptor.TYPE_SINT64: "long",
    FieldDescriptor.TYPE_SFIXED64: "long",
    FieldDescriptor.TYPE_UINT64: "decimal(20, 0)",
    FieldDescriptor.TYPE_FIXED64: "decimal(20, 0)",
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SFIXED32: "int",
    FieldDescriptor.TYPE_UINT32: "long",
    FieldDescriptor.TYPE_FIXED32: "long",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
    FieldDescriptor.TYPE_ENUM: "string",
}
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages of one value, which may so be absent: they become that value, or null."""

KIND_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}
"""The types of fields as a schema names them."""

_SAME_ENCODING: tuple[frozenset[int], ...] = (
    frozenset(
        (
            FieldDescriptor.TYPE_INT32,
            FieldDescriptor.TYPE_INT64,
            FieldDescriptor.TYPE_UINT32,
            FieldDescriptor.TYPE_UINT64,
            FieldDescriptor.TYPE_BOOL,
        )
    ),
    frozenset((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)),
    frozenset((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)),
    frozenset((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64)),
    frozenset((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)),
)
"""Types that have the same encoding, so that a schema may replace one by the other."""


def compiled(text: str, imports: tuple[tuple[str, str], ...] = (), *, name: str = "value.proto") -> FileDescriptor:
    """The descriptor of a schema.

    Parameters
    ----------
    text: the schema. imports: the files that it imports, by path; Google's own need not be named. name: for messages.

    Raises
    ------
    ValueError: with protoc's words, which name line and column.
    """
    found = _compiled(text, imports, name)
    if isinstance(found, str):
        raise ValueError(f"protoc refuses it: {found}")
    return found


@lru_cache(maxsize=64)
def _compiled(text: str, imports: tuple[tuple[str, str], ...], name: str) -> FileDescriptor | str:
    """The descriptor of a schema, or why protoc refuses it: either is asked of protoc once."""
    import grpc_tools  # here, because few declarations need it and DAG files should parse quickly
    from grpc_tools import protoc

    own = str(Path(str(grpc_tools.__file__)).parent / "_proto")
    with tempfile.TemporaryDirectory() as folder:
        _lay_out(Path(folder), {**dict(imports), name: text})
        output = Path(folder, ".descriptors")
        arguments = [f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={output}", name]
        if protoc.main(["protoc", *arguments]) != 0:
            return _refusal(arguments, folder)
        files = FileDescriptorSet.FromString(output.read_bytes())
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(name)


def message_of(file: FileDescriptor, name: str | None) -> Descriptor:
    """A message of a schema by its full name; the first without one.

    Raises
    ------
    ValueError: when there is no such message.
    """
    messages = list(file.message_types_by_name.values())
    if name is None and messages:
        return messages[0]
    found = {one.full_name: one for one in _with_nested(messages)}
    if name not in found:
        raise ValueError(f"it has no message {name or 'at all'}; it has {', '.join(sorted(found)) or 'none'}")
    return found[name]


def message_columns(message: Descriptor) -> tuple[Column, ...]:
    """The columns that a message becomes.

    Raises
    ------
    ValueError: when a field has no column type: the message says which.
    """
    return tuple(
        Column(name=field.name, type=_field_type(field, field.name, 1), required=bool(field.is_required))
        for field in message.fields
    )


def map_entry(field: FieldDescriptor) -> Descriptor | None:
    """The pairs of a field that is a map, which to Protobuf is a list of pairs; none for any other field."""
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    return map_entry(field) is not None


def incompatible_fields(writer: Descriptor, reader: Descriptor) -> tuple[str, ...]:
    """Describe the fields that a reader would decode wrongly: the writer uses the same number for another type."""
    return tuple(_incompatible_fields(writer, reader, "", frozenset()))


def _incompatible_fields(
    writer: Descriptor, reader: Descriptor, place: str, above: frozenset[tuple[str, str]]
) -> Iterator[str]:
    pair = (writer.full_name, reader.full_name)
    if pair in above:
        return
    for number, field in reader.fields_by_number.items():
        written = writer.fields_by_number.get(number)
        if written is None:
            continue
        if not _is_readable(written, field):
            yield f"{place}{field.name} ({number}) was {_type_name(written)} and is {_type_name(field)}"
        elif field.message_type is not None and written.message_type is not None:
            yield from _incompatible_fields(
                written.message_type, field.message_type, f"{place}{field.name}.", above | {pair}
            )


def _is_readable(written: FieldDescriptor, field: FieldDescriptor) -> bool:
    if written.is_repeated != field.is_repeated or is_map(written) != is_map(field):
        return False
    return written.type == field.type or any({written.type, field.type} <= group for group in _SAME_ENCODING)


def _type_name(field: FieldDescriptor) -> str:
    kind = "map" if is_map(field) else KIND_NAMES[field.type]
    return f"repeated {kind}" if field.is_repeated and not is_map(field) else kind


def _field_type(field: FieldDescriptor, place: str, depth: int) -> str:
    if (entry := map_entry(field)) is not None:
        key, value = (entry.fields_by_name[part] for part in ("key", "value"))
        return f"map<{_SCALARS[key.type]}, {_single_type(value, f'{place}[]', depth)}>"
    single = _single_type(field, place, depth)
    return f"list<{single}>" if field.is_repeated else single


def _single_type(field: FieldDescriptor, place: str, depth: int) -> str:
    message = field.message_type
    if message is None:
        return _SCALARS[field.type]
    if message.full_name == TIMESTAMP:
        return "timestamptz"
    if message.full_name in WRAPPERS:
        return _SCALARS[message.fields_by_name["value"].type]
    if depth >= DEEPEST_TYPE:
        raise ValueError(f"{place} is nested more than {DEEPEST_TYPE} levels deep, or contains itself")
    if not message.fields:
        raise ValueError(f"{place} is {message.full_name}, which has no fields; no column can be empty")
    inner = (f"{one.name}: {_field_type(one, f'{place}.{one.name}', depth + 1)}" for one in message.fields)
    return f"struct<{', '.join(inner)}>"


def _with_nested(messages: list[Descriptor]) -> list[Descriptor]:
    return [one for message in messages for one in (message, *_with_nested(list(message.nested_types)))]


def _lay_out(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"it imports {name}, which is not a path below its own folder")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def _refusal(arguments: list[str], folder: str) -> str:
    """What protoc has against it. It only writes to its process's stderr, so it is asked again in one of its own."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)  # noqa: S603  # our own command
    lines = [line.replace(f"{folder}/", "") for line in said.stderr.splitlines() if not _LOG_LINE.match(line)]
    return "; ".join(lines).rstrip(".")
