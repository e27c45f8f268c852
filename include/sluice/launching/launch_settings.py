"""The `--conf` settings of a Spark application: those that must be known before its JVM exists, none of them secret.

The driver itself sets the others, and every secret, from its environment (`sluice_spark.session.session`).

Every Spark process of this host gets the deployment's environment, and nothing of Airflow's: its variables hold its own
secrets: the key of its tokens, its Fernet key, the address of its database. User code runs inside Spark's processes,
and no job needs them. Nor does one get the role that owns the ledger. A driver on another machine gets only what
`sluice.launching.submission.driver_environment` lists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.declarations.run_declaration import EngineDeclaration
from sluice.errors import LaunchError
from sluice.setup.jars import is_complete, parse_lock
from sluice.setup.java_runtime import ARCHIVE_NAME

_WITHHELD = re.compile(r"_*AIRFLOW|SLUICE_LEDGER_(OWNER|DRIVER)_URL$", re.IGNORECASE)


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


LOCAL_IP_VARIABLE = "SPARK_LOCAL_IP"
LOOPBACK = "127.0.0.1"

_REDACTED = (
    r"(?i)secret|password|token|credential|access[._-]?key|authorization|signature|jaas"
    r"|(?-i:\bSLUICE_)|://[^:/@\s]*:[^@\s]+@"
)
"""Spark shows no setting whose name or value matches, on its UI's page of the environment and in event logs.
A URL with a password is a value; a variable of the deployment that a cluster's container gets is a setting's name."""


_IN_UTC = "-Duser.timezone=UTC"
"""JVMs of drivers and executors do not take their host's time zone: values that pass through local time would depend on
the host, and on its daylight-saving changes. The zone of Python is set in `sluice_spark.session.session`."""

_NAMING_ITEMS = "-Dlog4j2.isThreadContextMapInheritable=true"
"""Threads that begin for a work item, as that of a query does, name it in what they log.
Source: https://logging.apache.org/log4j/2.x/manual/thread-context.html"""

_ALONE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
"""In local mode the driver listens although no executor will connect. No other machine reaches it, and another user of
this one needs a secret, which Spark makes for each driver.
Source: https://spark.apache.org/docs/4.1.0/security.html#spark-rpc-communication-protocol-between-spark-processes"""

_SPOT_NODES = {
    f"spark.{what}": "true"
    for what in (
        "decommission.enabled",
        "storage.decommission.enabled",
        "storage.decommission.rddBlocks.enabled",
        "storage.decommission.shuffleBlocks.enabled",
    )
}
"""An executor that is decommissioned takes no more tasks and moves its blocks and shuffle files to others.
Source: https://spark.apache.org/docs/4.1.0/configuration.html"""


_PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times the JVM's default thresholds for its optimizing compiler. Code that stays hot is compiled all the same; the
code of the start is not, whose compilation took two fifths of the processor time of a driver's first minutes.
Source: https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html (and `java -XX:+PrintFlagsFinal`)"""

_LONG_METHODS = "-XX:-DontCompileHugeMethods"
"""By default a JVM never compiles a method of more than 8,000 bytes of bytecode. What Spark generates for rows with
many columns or rules is longer, and took four times as long.
Source: https://github.com/openjdk/jdk17u/blob/master/src/hotspot/share/runtime/globals.hpp (`HugeMethodLimit`)"""

_QUICK_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""Only the JVM's quick compiler, with the code cache that it has beside the optimizing one. Alone it gets 48 MB, which
an application of some minutes fills: then a third of the JVM's processor time goes into removing code from it and into
compiling that again.
Source: https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html (`ReservedCodeCacheSize`)"""


def class_path(jars: Path, *, home: Path) -> str:
    """Return Spark's class path, in a stable order. Delta's jars are on it for sessions that use Delta.

    The folder of the locked jars is in a cache that all clones of a user share, which a transformation can write: each
    start compares it with the lock again, by hash, in a quarter of a second. Another folder is the deployment's.

    Raises
    ------
    LaunchError: when a jar is missing, was added, or is not the one that the lock names.
    """
    parts = ("spark", "delta")
    if (home / "ivy.lock").is_file():
        lock = parse_lock((home / "ivy.lock").read_text())
        if jars.name == lock.key() and not is_complete(jars, lock=lock.only(parts)):
            raise LaunchError(
                f"The jars in {jars} are not those of ivy.lock: one is missing, was added, or has changed.",
                next_step="See who wrote into it; remove the folder, and run `make setup`, which fetches them again.",
            )
    return ":".join(str(jar) for folder in parts for jar in sorted((jars / folder).glob("*.jar")))


def is_local(master: str) -> bool:
    """Whether Spark runs inside the driver, on this machine."""
    return master == "local" or master.startswith("local[")


def launch_conf(
    *, home: Path, jars: Path, engine: EngineDeclaration, is_bounded: bool, master: str = "local[*]"
) -> dict[str, str]:
    """Return the `--conf` settings of one application.

    Parameters
    ----------
    home: the project's root, which has the log configuration.
    jars: the folder with one folder of jars for each class path.
    engine: the engine part of the declaration.
    is_bounded: whether the application ends by itself within minutes; then a quick start matters more than peak speed.
    master: Spark's master. On a cluster the jars have the same path on every node.
    """
    on_class_path = class_path(jars, home=home)
    log = (f"-Dlog4j2.configurationFile={home / 'jobs' / 'log4j2.properties'}", _NAMING_ITEMS)
    java_options = [*log, _IN_UTC, "-XX:+UseSerialGC", _LONG_METHODS]
    java_options += _QUICK_COMPILER if is_bounded else _PATIENT_COMPILER
    java_options += _class_archive_options()
    return {
        **engine.options,
        **({} if is_local(master) else _cluster_conf(engine, on_class_path)),
        "spark.driver.extraClassPath": on_class_path,
        "spark.executorEnv.TZ": "UTC",  # of the Python processes beside an executor; in local mode beside the driver
        "spark.driver.memory": f"{engine.driver_memory // 1024**2}m",
        "spark.driver.extraJavaOptions": " ".join(java_options),
        **(_ALONE if is_local(master) else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.master.rest.enabled": "false",
        "spark.redaction.regex": _REDACTED,
    }


def ui_environment(engine: EngineDeclaration, *, master: str) -> dict[str, str]:
    """Return the variable that binds Spark's UI to loopback, for a driver that is to serve it. Spark has no setting for
    that, and the JVM must have the variable from its start; without it a driver serves no UI.

    Source: https://spark.apache.org/docs/4.1.0/spark-standalone.html (`SPARK_LOCAL_IP`)
    """
    return {LOCAL_IP_VARIABLE: LOOPBACK} if engine.ui and is_local(master) else {}


def _cluster_conf(engine: EngineDeclaration, on_class_path: str) -> dict[str, str]:
    """The settings of executors. Dynamic allocation is off unless declared, because executors hold a stream's state."""
    conf = {
        "spark.executor.extraClassPath": on_class_path,
        "spark.executor.extraJavaOptions": f"{_IN_UTC} {_LONG_METHODS}",
    }
    if engine.cores is not None:
        conf["spark.executor.cores"] = str(engine.cores)
    if engine.executor_memory is not None:
        conf["spark.executor.memory"] = f"{engine.executor_memory // 1024**2}m"
    if engine.most_executors is not None:
        least = str(engine.executors or 1)
        conf |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.initialExecutors": least,
            "spark.dynamicAllocation.minExecutors": least,
            "spark.dynamicAllocation.maxExecutors": str(engine.most_executors),
        }
    elif engine.executors is not None:
        conf["spark.executor.instances"] = str(engine.executors)
    return conf | (_SPOT_NODES if engine.spot_nodes else {})


def _class_archive_options() -> list[str]:
    """Let the JVM map the classes that the bootstrap archived; drivers on one machine share that memory.

    A JVM that does not find the archive, or for which it was not made, starts without it and logs nothing.
    """
    archive = Path(sys.prefix) / ARCHIVE_NAME
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds*=off"] if archive.is_file() else []
