"""What a declaration grants reaches the driver and its executors, in local mode and on a cluster of processes.

Every run starts drivers with what they are granted in the demo and in `tests/spark/runs/test_jobs.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.stack import Stack

from sluice.declarations.run_declaration import EngineDeclaration
from sluice.launching.launch_settings import launch_conf
from sluice.launching.spark_submit import find_spark_submit
from sluice.settings import Settings

APPLICATION = """
import json

from sluice.declarations.run_declaration import StateDeclaration
from sluice.settings import load_settings
from sluice_spark.session.session import open_session

spark = open_session(load_settings(), name="engine", state=StateDeclaration(), cores=CORES)
context = spark.sparkContext
numbers = spark.range(1000, numPartitions=4).selectExpr("sum(id)").collect()[0][0]
table = context._jvm.java.lang.Class.forName("org.apache.iceberg.spark.SparkCatalog").getName()
print("found " + json.dumps({
    "conf": dict(context.getConf().getAll()),
    "cores": context.defaultParallelism,
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "executors": context._jsc.sc().getExecutorMemoryStatus().size() - 1,
    "sum": numbers,
}))
spark.stop()
"""


def found_by(
    master: str, engine: EngineDeclaration, *, services: Stack, settings: Settings, folder: Path
) -> dict[str, Any]:
    """What an application finds that was granted `engine`."""
    application = folder / "application.py"
    application.write_text(APPLICATION.replace("CORES", str(engine.cores)))
    conf = launch_conf(home=settings.home, jars=settings.jars, engine=engine, is_bounded=True, master=master)
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(  # noqa: S603  # our own job
        [find_spark_submit("spark-submit"), "--master", master, *words, str(application)],
        env={**os.environ, **services.environment(), **python},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("found "))
    told: dict[str, Any] = json.loads(line.removeprefix("found "))
    return told


@pytest.mark.full  # every run has what `spark-submit` is given (`test_spark_submit.py`)
def test_a_driver_in_local_mode_has_its_cores_and_settings(services: Stack, settings: Settings, tmp_path: Path) -> None:
    engine = EngineDeclaration.model_validate(
        {"cores": 1, "driver_memory": "600MiB", "options": {"spark.task.maxFailures": 3}}
    )

    found = found_by("local[*]", engine, services=services, settings=settings, folder=tmp_path)

    assert (found["cores"], found["partitions"], found["executors"]) == (1, "1", 0)
    assert found["conf"]["spark.master"] == "local[1,2]"
    assert found["conf"]["spark.driver.memory"] == "600m"
    assert found["conf"]["spark.task.maxFailures"] == "3"


@pytest.mark.full  # the settings for a cluster are tested in `test_spark_submit.py`; `make test-yarn` has a real one
def test_executors_on_a_cluster_are_as_declared(services: Stack, settings: Settings, tmp_path: Path) -> None:
    engine = EngineDeclaration.model_validate(
        {"cores": 1, "executors": 1, "most_executors": 1, "executor_memory": "512MiB", "spot_nodes": True}
    )

    found = found_by("local-cluster[1,1,1024]", engine, services=services, settings=settings, folder=tmp_path)

    assert (found["sum"], found["executors"]) == (499500, 1)
    conf = found["conf"]
    assert (conf["spark.executor.memory"], conf["spark.executor.cores"]) == ("512m", "1")
    assert conf["spark.storage.decommission.shuffleBlocks.enabled"] == conf["spark.decommission.enabled"] == "true"
    assert conf["spark.dynamicAllocation.maxExecutors"] == "1"
