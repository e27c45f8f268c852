"""The services of the stack. Each module of this folder defines `STEPS`; a new service is a new module."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection

from sluice.errors import UsageError
from sluice.stack.stack_plan import Preparation, Service, Step


def all_steps() -> dict[str, Step]:
    """Every step by name, each after those it needs."""
    found: dict[str, Step] = {}
    for module in pkgutil.iter_modules(__path__):
        for step in importlib.import_module(f"{__name__}.{module.name}").STEPS:
            found[step.name] = step
    ordered: dict[str, Step] = {}

    def add(step: Step) -> None:
        for need in step.needs:
            add(found[need])
        ordered.setdefault(step.name, step)

    for step in found.values():
        add(step)
    return ordered


def all_services() -> dict[str, Service]:
    """Every service by name, each after those it needs."""
    return {name: step for name, step in all_steps().items() if isinstance(step, Service)}


def needs_of(step: Step) -> set[str]:
    """The names of all steps that must be done before a step, at any distance."""
    steps = all_steps()
    return set(step.needs).union(*(needs_of(steps[need]) for need in step.needs))


def select_steps(services: Collection[str] | None = None) -> dict[str, Step]:
    """The steps that some services take, in order: the services, what they need, and what completes them.

    Parameters
    ----------
    services: the names of the services; all when None.

    Raises
    ------
    UsageError: when there is no service of that name.
    """
    steps = all_steps()
    known = all_services()
    unknown = set(services or ()) - set(known)
    if unknown:
        raise UsageError(f"There is no service {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    selected: set[str] = set()

    def select(step: Step) -> None:
        selected.add(step.name)
        for need in step.needs:
            select(steps[need])

    for name in known if services is None else services:
        select(steps[name])
    for step in steps.values():
        if isinstance(step, Preparation) and step.completes in selected:
            select(step)
    return {name: step for name, step in steps.items() if name in selected}
