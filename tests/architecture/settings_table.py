"""The table of `docs/settings.md`, made from the settings themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sluice.settings import (
    FilesConnection,
    JdbcConnection,
    KafkaConnection,
    KinesisConnection,
    SchemaRegistryConnection,
    Settings,
)


def render_table() -> str:
    """Every variable of a deployment, in Markdown, in the order of the settings."""
    connections = (KafkaConnection, FilesConnection, JdbcConnection, KinesisConnection, SchemaRegistryConnection)
    rows = [*_rows(Settings, prefix="SLUICE_"), *(row for kind in connections for row in _connection_rows(kind))]
    return "\n".join(["| variable | when unset | meaning |", "|---|---|---|", *rows])


def _rows(model: type[BaseModel], *, prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _rows(field.annotation, prefix=f"{variable}__")
        elif name != "connections":
            yield f"| `{variable}` | {_when_unset(field)} | {_meaning(field)} |"


def _connection_rows(model: type[BaseModel]) -> Iterator[str]:
    (kind,) = get_args(model.model_fields["kind"].annotation)
    for name, field in model.model_fields.items():
        what = (model.__doc__ or "").split(";")[0].rstrip(".\n")
        meaning = f"`{kind}`: {what[0].lower()}{what[1:]}" if name == "kind" else f"of `{kind}`: {_meaning(field)}"
        yield f"| `SLUICE_CONNECTIONS__<NAME>__{name.upper()}` | {_when_unset(field)} | {meaning} |"


def _when_unset(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    if field.default is None:
        return "none"
    default: Any = field.default
    return "found" if default is PydanticUndefined else f"`{default}`"


def _meaning(field: FieldInfo) -> str:
    is_secret = field.annotation is SecretStr or SecretStr in get_args(field.annotation)
    return f"{field.description}{' (secret)' if is_secret else ''}"
