"""The files of a table as an earlier look counted them, so that a look at a table without a commit reads no manifest.

A snapshot never changes its files: whether one of its partitions has files to rewrite depends on the snapshot and the
policy, and on nothing that time alone changes; but where recently written partitions were left alone, time changes what
is due, and nothing is taken from that look. A run that found nothing to rewrite therefore records by what it decided
(`StepObservation.basis`), beside the figures that it records anyway. A later look with the same basis takes those, and
decides pins, expiry and all that depends on the time as always. So does one after Spark has rewritten a table and found
nothing to change, unless partitions were left for later: it would find that again. Another commit, another table of
that name, another policy and another version of the program have another basis, and who rewrites files reads the
manifests anyway.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version

from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.ledger.maintenance_runs import MaintenanceObservation, MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.step_decision import StepReason
from sluice.tables.table_observation import FILE_SIZE_EDGES, FileCounts

_NOTHING_TO_REWRITE = frozenset({StepReason.FEW_SMALL_FILES, StepReason.NOT_DECLARED})


def basis_of(policy: MaintenanceDeclaration, *, table_uuid: str, snapshot_id: int | None) -> str:
    """By what it is decided that a table has no files to rewrite. The version stands for the rule itself."""
    compaction = "" if policy.compaction is None else policy.compaction.model_dump_json()
    parts = (_version(), FILE_SIZE_EDGES, compaction, table_uuid, snapshot_id)
    return sha256(repr(parts).encode()).hexdigest()


def counted_files(earlier: MaintenanceObservation | None, *, basis: str) -> FileCounts | None:
    """The files as the newest run counted them; none when it had another basis, or files to rewrite.

    Parameters
    ----------
    earlier: the newest run of the table.
    basis: of now.
    """
    step = None if earlier is None else _rewrite_of(earlier)
    if earlier is None or step is None or step.basis != basis:
        return None
    after = earlier.after
    return FileCounts(
        rows=after.rows,
        data_files=after.files,
        data_bytes=after.bytes,
        small_files=after.small_files,
        delete_files=after.delete_files,
        manifests=after.manifests,
        file_sizes=earlier.file_sizes,
    )


def with_basis(
    run: MaintenanceObservation, plan: MaintenancePlan, policy: MaintenanceDeclaration
) -> tuple[StepObservation, ...]:
    """The steps of a run, with the basis where it found nothing to rewrite in the snapshot that it also counted."""
    decided = next((one for one in plan.steps if one.step is MaintenanceStep.REWRITE_DATA_FILES), None)
    is_of_snapshot = plan.seen.snapshot_id is not None and run.after.snapshot == plan.seen.snapshot_id
    if decided is None or not is_of_snapshot:
        return run.operations
    done = _rewrite_of(run)
    is_tried = decided.is_for_spark and not decided.left and done is not None and done.outcome is StepOutcome.DONE
    if decided.reason not in _NOTHING_TO_REWRITE and not is_tried:
        return run.operations
    basis = basis_of(policy, table_uuid=plan.seen.table_uuid, snapshot_id=plan.seen.snapshot_id)
    return tuple(replace(one, basis=basis) if one.step is decided.step else one for one in run.operations)


@cache
def _version() -> str:
    return version("sluice")


def _rewrite_of(run: MaintenanceObservation) -> StepObservation | None:
    return next((one for one in run.operations if one.step is MaintenanceStep.REWRITE_DATA_FILES), None)
