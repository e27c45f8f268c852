"""Decides whether a stream can continue from its checkpoint after a change of its declaration.

A checkpoint holds positions by the place of a source in the query, and state by the place and keys of an operator; the
state store and its number of partitions are fixed in it. Spark notices some of these changes late and others never.
Everything to which a checkpoint is bound is therefore recorded at its first start as its fingerprint; everything else
may change.
Source: https://spark.apache.org/docs/4.1.1/streaming/apis-on-dataframes-and-datasets.html, "Recovery Semantics".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.declarations.stream_declaration import StreamDeclaration

STATE_OPERATORS = "state operators"
"""The entry of the operators that keep state, with their keys; empty without any. Only a planned query shows them."""

STATE_MEANING = "meaning of the state"
"""The entry of what the operators keep: keys and aggregates with order and types, conditions and columns of joins,
limits. Spark compares types alone."""

PROCESSOR_KEYS = "keys of the state processors"
"""The entry of the columns by which processors of state keep their values; there is none without a processor."""

SOURCES = "sources of the query"
"""The entry of the inputs in the order in which the query reads them. A query with several outputs reads its inputs for
each of them. Only a planned query shows the order."""

_INPUT = "input "
_STATE = "state "
_DELIVERY = "delivery of "
STATE_VERSION = f"{_STATE}version"
"""The entry of the declared version of what the code keeps."""

_IDENTITY = (
    "connection",
    "topics",
    "topic_pattern",
    "assignment",
    "stream",
    "path",
    "format",
    "table",
    "host",
    "port",
)
"""The keys that define *which* data a source reads. Others define the rate, the start, or the handling of failures."""


def fingerprint_of(
    declaration: StreamDeclaration,
    *,
    sources: Sequence[str] | None = None,
    state_operators: Sequence[str] | None = None,
    state_meaning: Sequence[str] | None = None,
    processor_keys: Sequence[str] = (),
) -> dict[str, str]:
    """The parts of a declaration to which a checkpoint is bound.

    Parameters
    ----------
    sources, state_operators, state_meaning, processor_keys: from the planned query; unset where no query was planned.
    """
    fingerprint = {
        f"{_INPUT}{name}": f"{declared.declared_source.kind} {_identity(declared.declared_source.source)}".strip()
        for name, declared in declaration.inputs.items()
        if declared.is_stream
    }
    fingerprint[f"{_STATE}provider"] = declaration.state.provider
    fingerprint[STATE_VERSION] = str(declaration.state.version)
    partitions = declaration.state.shuffle_partitions
    if partitions is not None:
        fingerprint[f"{_STATE}shuffle_partitions"] = str(partitions)
    # Staged and direct delivery do not recognise the batches that the other one has made visible.
    if declaration.direct_output is not None:
        fingerprint[f"{_DELIVERY}{declaration.direct_output}"] = "direct"
    if sources is not None:
        fingerprint[SOURCES] = ", ".join(sources)
    if state_operators is not None:
        fingerprint[STATE_OPERATORS] = "; ".join(state_operators)
    if state_meaning is not None:
        fingerprint[STATE_MEANING] = "; ".join(state_meaning)
    if processor_keys:
        fingerprint[PROCESSOR_KEYS] = "; ".join(processor_keys)
    return fingerprint


def refused_changes(recorded: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The changes that a checkpoint cannot follow, each as a phrase; none when the declaration is compatible.

    Parameters
    ----------
    recorded: the fingerprint of the checkpoint; empty before its first start, when everything is compatible.
    wanted: the fingerprint of the current declaration; without the entries of a planned query where none was planned.
    """
    if not recorded:
        return ()
    keeps_state = bool(recorded.get(STATE_OPERATORS) or recorded.get(STATE_MEANING))
    keys = [
        key
        for key in (*recorded, *(key for key in wanted if key not in recorded))
        if _is_bound(key, recorded=recorded, wanted=wanted, keeps_state=keeps_state)
    ]
    return tuple(
        f"{key} was `{recorded.get(key) or _default(key)}` and is now `{wanted.get(key) or _default(key)}`"
        for key in keys
        if recorded.get(key) != wanted.get(key)
    )


def ways_out(stream: str) -> str:
    """The next steps after a change that the checkpoint of a stream cannot follow."""
    return (
        "Undo that change, declare the new one as a stream of another name, or stop the stream and leave its "
        f"checkpoint behind: `sluice stream reset {stream}` shows what is then read and published again."
    )


def _is_bound(key: str, *, recorded: Mapping[str, str], wanted: Mapping[str, str], keeps_state: bool) -> bool:
    if key in (STATE_OPERATORS, STATE_MEANING, PROCESSOR_KEYS, SOURCES):
        return key in wanted and key in recorded
    if key.startswith(_STATE):
        # Without a declared number of partitions the machine's was taken, and only the checkpoint has that number.
        return keeps_state and key in recorded and key in wanted
    return True


def _default(key: str) -> str:
    """The value of an entry that a fingerprint does not have."""
    return "staged" if key.startswith(_DELIVERY) else "nothing"


def _identity(source: object) -> str:
    values = ((key, getattr(source, key, None)) for key in _IDENTITY)
    return " ".join(f"{key}={_text(value)}" for key, value in values if value not in (None, "", ()))


def _text(value: object) -> str:
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
