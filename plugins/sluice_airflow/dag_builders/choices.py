"""A parameter that chooses among names; none chosen means all."""

from __future__ import annotations

from collections.abc import Sequence

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException


def choice_param(kind: str, *, among: Sequence[str]) -> Param:
    """The parameter of a DAG: in Airflow's form a list to pick from; by the API, other names are refused.

    Parameters
    ----------
    kind: what is chosen, in the plural: the parameter's name.
    among: what there is to choose.
    """
    return Param(
        [],
        type="array",
        items={"type": "string", "enum": list(among)},
        examples=list(among),
        title=kind.capitalize(),
        description_md=f"The {kind} of this run. **None chosen means all.**",
    )


def chosen(kind: str, *, wanted: Sequence[str], among: Sequence[str]) -> list[str]:
    """What a run is about: what was chosen, all when nothing was; in the order of `among`.

    Raises
    ------
    AirflowFailException: when something is wanted that is not there, for example because it was removed meanwhile.
    """
    if unknown := sorted(set(wanted) - set(among)):
        raise AirflowFailException(
            f"The parameter {kind} names {', '.join(unknown)}; allowed are {', '.join(among) or 'none'}."
        )
    return [name for name in among if name in wanted] if wanted else list(among)
