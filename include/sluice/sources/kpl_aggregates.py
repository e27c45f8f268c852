"""Takes apart the records into which Kinesis Producer Library packs several records of its users.

An aggregate is four bytes, a Protobuf message, and the MD5 of the message. After a reshard the library sends those of
its records again whose key does not belong to the shard that took the aggregate; as Amazon's own consumer does, they
are left out of that aggregate.

Source: https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_PACKAGE = "sluice.kpl"
_FIELDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "AggregatedRecord": (
        ("partition_key_table", "repeated", "string"),
        ("explicit_hash_key_table", "repeated", "string"),
        ("records", "repeated", "Record"),
    ),
    "Record": (
        ("partition_key_index", "required", "uint64"),
        ("explicit_hash_key_index", "optional", "uint64"),
        ("data", "required", "bytes"),
    ),
}
"""The fields of the messages, numbered from 1. The tags of a record are left out: the library never sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A record of an aggregate. hash_key: decides which shard it belongs to."""

    partition_key: str
    hash_key: int
    data: bytes


def records_of_aggregate(data: bytes) -> Sequence[UserRecord] | None:
    """The records in the data of a Kinesis record, in order; None when the data are no aggregate."""
    message = data[len(_MAGIC) : -_DIGEST_BYTES]
    if not data.startswith(_MAGIC) or _md5(message) != data[-_DIGEST_BYTES:]:
        return None
    try:
        return tuple(_records(_aggregate_class().FromString(message)))
    except (DecodeError, IndexError, ValueError):
        return None


def _records(aggregate: Any) -> Iterator[UserRecord]:
    for record in aggregate.records:
        key = aggregate.partition_key_table[record.partition_key_index]
        if record.HasField("explicit_hash_key_index"):
            hash_key = int(aggregate.explicit_hash_key_table[record.explicit_hash_key_index])
        else:
            hash_key = int.from_bytes(_md5(key.encode()), "big")
        yield UserRecord(partition_key=key, hash_key=hash_key, data=record.data)


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


@lru_cache(maxsize=1)
def _aggregate_class() -> Any:
    pool = DescriptorPool()
    messages = [DescriptorProto(name=name, field=_fields_of(name)) for name in _FIELDS]
    pool.Add(FileDescriptorProto(name="kpl.proto", package=_PACKAGE, syntax="proto2", message_type=messages))
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.AggregatedRecord"))


def _fields_of(message: str) -> list[FieldDescriptorProto]:
    fields = []
    for number, (name, label, kind) in enumerate(_FIELDS[message], start=1):
        field = FieldDescriptorProto(name=name, number=number, label=f"LABEL_{label.upper()}")  # type: ignore[arg-type]  # names of enums are taken too
        if kind in _FIELDS:
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        else:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        fields.append(field)
    return fields
