"""The engine settings with which a request is carried out, from the declarations."""

from __future__ import annotations

from pathlib import Path

from sluice.backfill.followers import followers_of
from sluice.backfill.intervals import parse_interval
from sluice.declarations.load_declarations import load_declarations
from sluice.work.pools import EngineProfile, profile_of
from sluice.work.requests import FindGaps, Increment, RefreshTable, ReplaceInterval, WorkRequest


def profile_for(request: WorkRequest, pipelines: Path) -> EngineProfile:
    """The engine settings for a request: those of its stream; for the work on a table the defaults.

    Parameters
    ----------
    pipelines: the folder of the declarations.

    Raises
    ------
    DeclarationError: when a file cannot be read.
    UsageError: when the stream is not declared, or the interval is none.
    """
    match request:
        case ReplaceInterval():
            declarations = load_declarations(pipelines)
            stream = declarations.stream(request.stream)
            followers = followers_of(declarations, stream, parse_interval(request.start, request.end))
            streams = [stream, *(one.stream for one in followers)]
            return profile_of(stream, with_delta=any(one.declaration.uses_delta for one in streams))
        case Increment():
            return profile_of(
                load_declarations(pipelines, only=request.stream).stream(request.stream), is_increment=True
            )
        case RefreshTable() | FindGaps():
            return profile_of(load_declarations(pipelines, only=request.stream).stream(request.stream))
        case _:
            return EngineProfile()
