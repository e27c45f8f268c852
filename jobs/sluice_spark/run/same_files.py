"""Refuses to run other files than the ones that a run was started for."""

from __future__ import annotations

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import FilesDifferError
from sluice.ledger.run_values import RunObservation


def require_same_files(stream: LoadedStream, run: RunObservation, *, host: str) -> None:
    """Require that this host holds the declaration and the code that the supervisor has read.

    A host with older files would run older code under the digest of the newer one, and its supervisor would never
    replace it. A file that was edited since the admission is refused as well: the next start follows at once, because
    failures of an earlier declaration do not count.

    Parameters
    ----------
    stream: as this host has it.
    run: as it was admitted.

    Raises
    ------
    FilesDifferError: when the digests differ.
    """
    if stream.digest != run.declaration_digest:
        raise FilesDifferError(
            f"Run {run.run_id} was started for the declaration of {stream.name} with the digest "
            f"{run.declaration_digest[:12]}. On {host}, {stream.file} with its code and schema files has the digest "
            f"{stream.digest[:12]}.",
            next_step="Bring the same files to every host; a file that was edited meanwhile needs nothing.",
        )
