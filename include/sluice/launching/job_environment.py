"""The environment of every Spark process on this host: the deployment's settings, and nothing of Airflow's.

Airflow's variables hold its own secrets: the key of its tokens, its Fernet key, the address of its database. User code
runs inside Spark's processes, and no job needs them. A driver on another machine gets only what
`sluice.launching.cluster.submission.driver_environment` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_WITHHELD = re.compile(r"_*AIRFLOW", re.IGNORECASE)


def job_environment(environ: Mapping[str, str], *, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a Spark process.

    Parameters
    ----------
    environ: of the process that starts it.
    own: variables of this one process, which replace inherited ones.
    """
    withheld = frozenset(withheld_names(environ))
    return {name: value for name, value in environ.items() if name not in withheld} | dict(own or {})


def withheld_names(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the variables that a Spark process does not get."""
    return (name for name in environ if _WITHHELD.match(name))
