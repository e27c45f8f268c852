"""Which class of failure ended a run, and for which reason: told from the chain of its errors. Pure.

Asked in this order; the first answer stays:

1. the errors of Sluice that already say what is wrong (`LedgerUnreachableError`, `StaleTokenError` …);
2. error classes and conditions, of Spark, Java, Kafka, Iceberg, AWS, PostgreSQL and Python, from the most telling
   (`OutOfMemoryError`) to the least (`AnalysisException`); where a service cannot be reached, the other errors of the
   chain say which one it was;
3. texts, where a library raises one class for everything;
4. the errors of Sluice that only say where it happened (`DeliveryError`, `LakehouseError`).

What no rule knows is `unknown`: it is restarted as declared and nothing more is made of it. Every rule is there because
of a failure that was provoked: `tests/unit/failures/corpus` holds what was raised, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sluice.errors import FailureReason
from sluice.failures.error_chains import ErrorChain, ErrorLink
from sluice.failures.guide import failure_of
from sluice.failures.rules import CODE, CONDITIONS, KINDS, TEXTS, UNREACHABLE, WRAPPERS, service_of
from sluice.ledger.records.failure import Failure
from sluice.ledger.records.run import RunObservation, RunState

_Thing = TypeVar("_Thing")
OWN: Mapping[str, FailureReason] = {
    "UsageError": FailureReason.DECLARATION_REFUSED,
    "SettingsError": FailureReason.SETTINGS_REFUSED,
    "PrerequisiteError": FailureReason.SETTINGS_REFUSED,
    "LedgerUnreachableError": FailureReason.LEDGER_UNREACHABLE,
    "RegistryUnreachableError": FailureReason.REGISTRY_UNREACHABLE,
    "RunAlreadyLiveError": FailureReason.LEASE_LOST,
    "LeaseLostError": FailureReason.LEASE_LOST,
    "StaleTokenError": FailureReason.LEASE_LOST,
    "LaunchError": FailureReason.LAUNCH_FAILED,
    "UnpublishableError": FailureReason.DECLARATION_REFUSED,
    "StagingError": FailureReason.TABLE_DIVERGED,
    "MarkError": FailureReason.TABLE_DIVERGED,
    "DivergedError": FailureReason.TABLE_DIVERGED,
    "RolledBackError": FailureReason.TABLE_DIVERGED,
    "SchemaError": FailureReason.SCHEMA_DIFFERS,
    "StarvedError": FailureReason.COMMIT_STARVED,
    "UncertainError": FailureReason.COMMIT_UNCERTAIN,
}
"""The errors of Sluice that say themselves what is wrong, whatever caused them."""


def classify(chain: ErrorChain) -> Failure:
    """The class and the reason of a failure.

    Parameters
    ----------
    chain: its errors, the outermost first; empty when nothing was told.
    """
    for ask in (_told_by_sluice, _told_by_class, _told_by_text, _told_by_wrapper):
        reason = ask(chain)
        if reason is not None:
            return failure_of(reason)
    return failure_of(FailureReason.UNEXPLAINED)


def failure_of_exit(exit_code: int | None, *, state: RunState, reason: str) -> Failure:
    """The failure of a driver that did not say itself why it failed.

    Parameters
    ----------
    exit_code: as its parent saw it: negative, or above 128, when a signal ended it; unset when nobody saw it.
    state: how the ledger tells the end.
    reason: the sentence that the ledger has, which may begin with the class of an error.
    """
    if state is RunState.LOST:
        return failure_of(FailureReason.DRIVER_LOST)
    if reason.startswith("killed by "):
        return failure_of(FailureReason.DRIVER_KILLED)
    if exit_code == 0:
        return failure_of(FailureReason.ENDED_BY_ITSELF)
    kind, colon, message = reason.partition(": ")
    told = (
        (ErrorLink(kind=kind, message=message),)
        if colon and kind.isidentifier()
        else (ErrorLink(kind="", message=reason),)
    )
    return classify(told)


def failure_of_run(run: RunObservation) -> Failure:
    """Why a run ended: as it was recorded, or as its end can be read."""
    if run.failure is not None:
        return run.failure
    return failure_of_exit(run.exit_code, state=run.state, reason=run.reason or "")


def _told_by_sluice(chain: ErrorChain) -> FailureReason | None:
    return _first(chain, lambda link: OWN.get(link.name) if _is_ours(link) else None)


def _told_by_class(chain: ErrorChain) -> FailureReason | None:
    told = _first((*CONDITIONS, *KINDS), lambda rule: rule.reason if any(rule.knows(link) for link in chain) else None)
    if told is not None:
        return told
    if any(UNREACHABLE.knows(link) for link in chain):
        return service_of(chain)
    return _first(CODE, lambda rule: rule.reason if any(rule.knows(link) for link in chain) else None)


def _told_by_text(chain: ErrorChain) -> FailureReason | None:
    return _first(TEXTS, lambda rule: rule.reason if any(rule.knows(link) for link in chain) else None)


def _told_by_wrapper(chain: ErrorChain) -> FailureReason | None:
    return _first(chain, lambda link: WRAPPERS.get(link.name) if _is_ours(link) else None)


def _is_ours(link: ErrorLink) -> bool:
    """Whether Sluice raised it: by its package, or in the last line of a driver, which leaves the package out."""
    return link.kind.startswith("sluice.") or "." not in link.kind


def _first(things: Iterable[_Thing], ask: Callable[[_Thing], FailureReason | None]) -> FailureReason | None:
    return next((reason for thing in things if (reason := ask(thing)) is not None), None)
