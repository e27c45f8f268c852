"""What a person is to look at, as every failing task of Sluice carries it: one form for all channels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An unhealthy stream, or a job that failed.

    stream: its name; the table of a job that has no stream.
    sentence: the whole message for a person, with the next step.
    reason: the state of the stream, or the reason of the failure; empty when it is unknown.
    is_new: whether it was not reported before. The reconciler reports a stream each minute as long as it is unhealthy.
    """

    stream: str
    sentence: str
    reason: str = ""
    is_new: bool = True
