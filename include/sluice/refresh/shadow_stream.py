"""The shadow of a stream: the same stream under another name, with a table of its own, over what is there now."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.rule_declaration import RuleDeclaration, row_rules
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UnpublishableError
from sluice.ledger.refreshes import RefreshObservation
from sluice.publication.data_files import Writer, WriterKind
from sluice.publication.marks import marked_outputs
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_layout import REFRESH_NAMESPACE, create_staging_copy, drop_staging_copy
from sluice.refresh.observe_refresh import refreshed_outputs
from sluice.tables.declared_tables import load_table, require_table

OUTPUTS = "outputs"
"""What a refresh exchanges: the table of each output by its name. The ledger keeps it before the first commit."""

_QUARANTINES = "quarantine"
"""The namespace of the quarantines: that of a shadow is the quarantine of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """An output whose table is exchanged, and that of the shadow, with the table that holds the new content until then.

    The first one of a stream is the output that is declared; its mark decides whether a refresh has landed.
    """

    output: StagedOutput
    built: StagedOutput


def exchanged_outputs(declaration: StreamDeclaration, refresh: RefreshObservation) -> tuple[Exchanged, ...]:
    """What a refresh exchanges: the table of the declared output, and then the quarantine. Once its commits may land,
    it is what they exchange, whatever is declared since."""
    kept = refresh.previous.get(OUTPUTS, {}).items()
    outputs = tuple(StagedOutput(stream=refresh.stream, output=name, target=table) for name, table in kept)
    return tuple(
        Exchanged(output=output, built=StagedOutput(stream=refresh.shadow, output=output.output, target=table))
        for output, table in zip(
            outputs or refreshed_outputs(declaration),
            (f"{REFRESH_NAMESPACE}.{refresh.shadow}", f"{_QUARANTINES}.{refresh.shadow}"),
            strict=False,  # a stream without a quarantine has one output
        )
    )


def shadow_of(stream: LoadedStream, refresh: RefreshObservation) -> LoadedStream:
    """A stream as its refresh runs it: an increment after the other, into the table of the shadow.

    Its code, its inputs and its state are those of the stream, so that the stream can continue from its checkpoint.
    """
    declaration = stream.declaration
    output = exchanged_outputs(declaration, refresh)[0].built
    declared = declaration.outputs[output.output]
    assert declared.iceberg is not None  # noqa: S101  # the plan refuses all others
    table = declared.iceberg.model_copy(update={"table": output.target, "publish_every": None})
    shadow = {
        "stream": refresh.shadow,
        "mode": "incremental",
        "trigger": None,
        "schedule": None,
        "backfill": None,
        "supervision": declaration.supervision.model_copy(update={"max_rejected": None}),
        "outputs": {output.output: declared.model_copy(update={"iceberg": table})},
    }
    return replace(stream, declaration=declaration.model_copy(update=shadow), rules=_failing(stream))


def _failing(stream: LoadedStream) -> dict[str, tuple[RuleDeclaration, ...]]:
    """The rules of a shadow: it waits for no person, so that a batch which would be held fails the refresh. Those about
    a batch as a whole are left out: a shadow reads the past, in other batches than the stream did."""
    return {
        output: tuple(
            rule.model_copy(update={"on_failure": "fail"}) if rule.on_failure == "hold" else rule for rule in rules
        )
        for output, rules in row_rules(stream.rules).items()
    }


def ensure_shadow(catalog: Catalog, stream: LoadedStream, refresh: RefreshObservation) -> None:
    """Create the tables of a shadow, with the layout of the targets and their data folders, unless a run has begun in
    them.

    Raises
    ------
    UnpublishableError: when the target was evolved since.
    LakehouseError: when the catalog refuses.
    """
    for one in exchanged_outputs(stream.declaration, refresh):
        built, target = one.built.target, one.output.target
        found = load_table(catalog, built)
        if found is None or not marked_outputs(found):
            create_staging_copy(
                catalog, built, target=target, writer=Writer(kind=WriterKind.REFRESH, identity=refresh.label)
            )
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
    for one in exchanged_outputs(stream.declaration, refresh):
        for name in (one.built.staging, one.built.target):
            drop_staging_copy(catalog, name)
