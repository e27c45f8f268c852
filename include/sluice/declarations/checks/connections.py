"""Checks that the connections a stream names exist in a deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.yaml_document import KeyPath
from sluice.errors import DeclarationError

_KINDS: Mapping[str, str] = {"kafka": "kafka", "files": "files", "delta": "files", "jdbc": "jdbc"}
"""The kind of connection that a source or output needs, by its own kind."""


def unknown_connections(
    streams: Iterable[LoadedStream], connections: Mapping[str, str]
) -> tuple[DeclarationError, ...]:
    """The connections that streams name and the deployment does not have, or has as another kind.

    Parameters
    ----------
    streams: the declarations.
    connections: the kind of each connection of the deployment, by name.
    """
    return tuple(problem for stream in streams for problem in _problems(stream, connections))


def _problems(stream: LoadedStream, connections: Mapping[str, str]) -> Iterator[DeclarationError]:
    for path, name, kind in _named_connections(stream):
        if name not in connections:
            yield DeclarationError(
                f"`{key_text(path)}`: the deployment has no connection {name}; "
                f"it has {', '.join(sorted(connections)) or 'none'}.",
                location=stream.location(path),
                next_step=did_you_mean(name, connections)
                or f"Set SLUICE_CONNECTIONS__{name.upper()}__KIND and the rest.",
            )
        elif connections[name] != _KINDS.get(kind, kind):
            yield DeclarationError(
                f"`{key_text(path)}`: the connection {name} is of kind {connections[name]}, "
                f"and {kind} needs one of kind {_KINDS.get(kind, kind)}.",
                location=stream.location(path),
            )


def _named_connections(stream: LoadedStream) -> Iterator[tuple[KeyPath, str, str]]:
    for name, declared in stream.declaration.inputs.items():
        way = "stream" if declared.is_stream else "static"
        kind = declared.declared_source.kind
        value = declared.declared_source.value
        if value is not None and value.registry is not None:
            yield ("inputs", name, way, kind, "value", "registry"), value.registry, "schema_registry"
        if (connection := getattr(declared.declared_source.source, "connection", None)) is not None:
            yield ("inputs", name, way, kind, "connection"), connection, kind
    for name, output in stream.declaration.outputs.items():
        if (connection := getattr(output.output, "connection", None)) is not None:
            yield ("outputs", name, output.kind, "connection"), connection, output.kind
