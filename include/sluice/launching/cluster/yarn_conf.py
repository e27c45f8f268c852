"""The settings by which an application of YARN is the driver of one run.

Source: https://spark.apache.org/docs/4.1.0/running-on-yarn.html#spark-properties
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from sluice.launching.cluster.application import DriverTag
from sluice.launching.cluster.yarn import yarn_tags

_SHELL = str.maketrans({character: f"\\{character}" for character in '\\"$`'})
"""The node writes each variable between double quotes into a shell script, just as it is."""


def yarn_conf(tag: DriverTag, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings, secrets among them: they belong into a private file.

    Parameters
    ----------
    tag: what the application is found by.
    environment: the driver's variables; executors get those of Python only.
    """
    return {
        **_spark_of_the_nodes(),
        "spark.yarn.tags": ",".join(yarn_tags(tag)),
        # YARN would start the same run again, without a look at why it ended; that is the supervision's work.
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.submit.waitAppCompletion": "false",
        **{f"spark.yarn.appMasterEnv.{name}": value.translate(_SHELL) for name, value in environment.items()},
        **{
            f"spark.executorEnv.{name}": value.translate(_SHELL)
            for name, value in environment.items()
            if name.startswith("PYSPARK_")
        },
    }


def _spark_of_the_nodes() -> dict[str, str]:
    """Spark lies at the same place on every node, as the jars and the project do; else it is uploaded every time."""
    found = find_spec("pyspark")  # finds the package without importing it
    if found is None or not found.submodule_search_locations:
        return {}
    return {"spark.yarn.jars": f"local:{Path(found.submodule_search_locations[0]) / 'jars'}/*"}
