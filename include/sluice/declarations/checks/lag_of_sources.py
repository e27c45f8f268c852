"""Refuses limits of progress that no source of the stream can be judged by. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.yaml_document import KeyPath
from sluice.errors import DeclarationError

COUNTED = frozenset({"kafka", "iceberg"})
"""Sources whose unread rows are counted (`sluice.sources.source_heads`)."""

OBSERVED = COUNTED | {"files", "delta", "kinesis", "rate"}
"""Sources of which it is known whether anything is unread."""


def unobservable_limits(stream: LoadedStream) -> Iterator[DeclarationError]:
    """The keys of a continuous stream's supervision that could never have an effect."""
    declaration = stream.declaration
    if declaration.mode != "continuous":
        return
    kinds = sorted({declared.declared_source.kind for declared in declaration.inputs.values() if declared.is_stream})
    is_blind = declaration.trigger is not None and declaration.trigger.continuous_processing is not None
    supervision = declaration.supervision
    if supervision.on_stall == "restart" and (is_blind or not OBSERVED.intersection(kinds)):
        yield _problem(stream, ("supervision", "on_stall"), "whether the stream is stalled", kinds, is_blind=is_blind)
    if supervision.max_lag is not None and (is_blind or not COUNTED.issuperset(kinds)):
        yield _problem(stream, ("supervision", "max_lag"), "how many rows are unread", kinds, is_blind=is_blind)


def _problem(
    stream: LoadedStream, path: KeyPath, unknown: str, kinds: list[str], *, is_blind: bool
) -> DeclarationError:
    why = "Spark reports no batches of continuous_processing" if is_blind else f"its inputs are {', '.join(kinds)}"
    allowed = "kafka and iceberg inputs" if path[-1] == "max_lag" else "every input but a socket"
    return DeclarationError(
        f"`{key_text(path)}`: {unknown} cannot be observed, because {why}. It works for {allowed}.",
        location=stream.location(path),
    )
