"""The shadow of a stream: the same stream under another name, with a table of its own, over what is there now."""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UnpublishableError
from sluice.ledger.refreshes import RefreshObservation
from sluice.publication.marks import marked_outputs
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_layout import REFRESH_NAMESPACE, create_staging_copy, drop_staging_copy
from sluice.refresh.observe_refresh import refreshed_output
from sluice.tables.declared_tables import load_table, require_table


def shadow_output(stream: LoadedStream, refresh: RefreshObservation) -> StagedOutput:
    """The output of the shadow, with the table that holds the new content until the swap."""
    output = refreshed_output(stream.declaration)
    table = f"{REFRESH_NAMESPACE}.{refresh.shadow}"
    return StagedOutput(stream=refresh.shadow, output=output.output, target=table)


def shadow_of(stream: LoadedStream, refresh: RefreshObservation) -> LoadedStream:
    """A stream as its refresh runs it: an increment after the other, into the table of the shadow.

    Its code, its inputs and its state are those of the stream, so that the stream can continue from its checkpoint.
    """
    declaration, output = stream.declaration, shadow_output(stream, refresh)
    declared = declaration.outputs[output.output]
    assert declared.iceberg is not None  # noqa: S101  # the plan refuses all others
    table = declared.iceberg.model_copy(update={"table": output.target, "publish_every": None})
    shadow = {
        "stream": refresh.shadow,
        "mode": "incremental",
        "trigger": None,
        "schedule": None,
        "backfill": None,
        "outputs": {output.output: declared.model_copy(update={"iceberg": table})},
    }
    return replace(stream, declaration=declaration.model_copy(update=shadow))


def ensure_shadow(catalog: Catalog, stream: LoadedStream, refresh: RefreshObservation) -> None:
    """Create the table of a shadow, with the layout of the target and its data folder, unless a run has begun in it.

    Raises
    ------
    UnpublishableError: when the target was evolved since.
    LakehouseError: when the catalog refuses.
    """
    output, target = shadow_output(stream, refresh), refreshed_output(stream.declaration).target
    found = load_table(catalog, output.target)
    if found is None or not marked_outputs(found):
        create_staging_copy(catalog, output.target, target=target)
    elif found.schema() != require_table(catalog, target).schema():
        raise UnpublishableError(
            f"The columns of {target} were changed since refresh {refresh.number} began.",
            next_step=f"Give it up and begin again: `sluice stream refresh {refresh.stream} --abandon`.",
        )


def drop_shadow(catalog: Catalog, stream: LoadedStream, refresh: RefreshObservation) -> None:
    """Drop the tables of a shadow without their files: after the swap, the target has them.

    Raises
    ------
    LakehouseError: when the catalog refuses.
    """
    output = shadow_output(stream, refresh)
    for name in (output.staging, output.target):
        drop_staging_copy(catalog, name)
