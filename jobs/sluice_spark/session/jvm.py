"""The JVM of a Spark session: access to what PySpark has no API for, and whether its jars match this pyspark.

A mismatch of versions would fail later, far from its cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyspark
from py4j.java_gateway import JavaGateway, JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from sluice.errors import SettingsError, SluiceError
from sluice.failures.error_chains import without_row_values

_CLOSED = "This Spark session has no JVM: it is closed."
_CALLBACKS = "py4j.CallbackClient"

_REMEMBERED = (
    "java.lang",
    "org.apache.commons.io",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.catalyst",
    "org.apache.spark.sql.classic",
    "org.apache.spark.sql.streaming",
    "py4j.reflection.TypeUtil",
    "PythonSQLUtils",
    "PythonUtils",
    "functions",
)
"""The names that PySpark and Sluice look up in every batch."""


def remember_names(spark: SparkSession) -> None:
    """Cache the JVM names that are used in every batch. Otherwise py4j asks the JVM for each part of a name each time.

    For each part, the JVM searches every jar of the class path for a class of that name, and for a bare name every
    imported package as well: 2-3 ms for `org` alone. PySpark looks up the exception that ends a Java iterator 13 times,
    which took 21 ms and takes 5 ms with this cache.
    """
    for name in _REMEMBERED:
        place = jvm_of(spark)
        for part in name.split("."):
            setattr(place, part, getattr(place, part))
            place = getattr(place, part)


def require_token_of_callbacks(spark: SparkSession) -> None:
    """Let this process accept calls of its own JVM only; call it before the first listener or `foreachBatch`.

    PySpark gives the port of the JVM a token, and none to the port on which Python takes calls of the JVM, where any
    user of the machine could call the functions of a stream. py4j knows a token for that port too, but its side in the
    JVM forgets it when PySpark sets the port, so it is set again.

    Raises
    ------
    SluiceError: when the session is closed.
    """
    gateway = _gateway_of(spark)
    token = gateway.gateway_parameters.auth_token
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark gives it no types
    private_field(jvm_of(spark), _CALLBACKS, "authToken").set(_callback_client(spark), token)


def close_idle_callbacks(spark: SparkSession) -> None:
    """Close the connections over which threads of the JVM have called Python, except those that are in use.

    Each thread of the JVM that calls Python opens one, on whose other end a thread of Python waits; py4j closes none of
    them, also when the thread of the JVM has ended, as that of a query has. A thread that calls again opens another.
    """
    jvm, client = jvm_of(spark), _callback_client(spark)
    lock = private_field(jvm, _CALLBACKS, "lock").get(client)
    idle = private_field(jvm, _CALLBACKS, "connections").get(client)
    lock.lock()  # a connection that is in use is not among them, and none gets into use meanwhile
    try:
        for connection in idle.toArray():
            if connection.isInitiatedFromClient():  # not one over which Python calls, and is called back
                idle.remove(connection)
                connection.shutdown()
            elif connection.getSocket() is None:
                idle.remove(connection)
    finally:
        lock.unlock()


def private_field(jvm: Any, owner: str, name: str) -> Any:
    """A private field of a class of the JVM, as `java.lang.reflect.Field`.

    Parameters
    ----------
    owner: the full name of the class.
    """
    field = jvm.java.lang.Class.forName(owner).getDeclaredField(name)
    field.setAccessible(True)
    return field


def _callback_client(spark: SparkSession) -> JavaObject:
    """The side of the JVM of its calls to Python."""
    return JavaObject("GATEWAY_SERVER", _gateway_of(spark)._gateway_client).getCallbackClient()


def _gateway_of(spark: SparkSession) -> JavaGateway:
    gateway = spark.sparkContext._gateway
    if gateway is None:
        raise SluiceError(_CLOSED)
    return gateway


def jvm_of(spark: SparkSession) -> Any:
    """The packages of the JVM as attributes: `jvm_of(spark).java.lang.System`. py4j has no types, hence `Any`.

    Raises
    ------
    SluiceError: when the session is closed, or is a Spark Connect session, which has no JVM in this process.
    """
    jvm = spark.sparkContext._jvm
    if jvm is None:
        raise SluiceError(_CLOSED)
    return jvm


def hadoop_file(spark: SparkSession, *place: str) -> tuple[JavaObject, JavaObject]:
    """The file system of a place as Spark opens it, and the place as a path of Hadoop's.

    Parameters
    ----------
    place: a location, and maybe a name below it.
    """
    path = jvm_of(spark).org.apache.hadoop.fs.Path(*place)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def iceberg_table(spark: SparkSession, catalog: str, table: str) -> JavaObject:
    """The object of Iceberg's that the catalog of a session has of a table, `<namespace>.<table>`."""
    jvm = jvm_of(spark)
    namespace, _, name = table.rpartition(".")
    namespaces = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.String"), 1)
    namespaces[0] = namespace
    path = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespaces, name)
    return spark._jsparkSession.sessionState().catalogManager().catalog(catalog).loadTable(path).table()


def first_line(error: PySparkException | Py4JJavaError) -> str:
    """The first line of an error's message; for a Java error unknown to PySpark, what its causes say together."""
    if not isinstance(error, Py4JJavaError):
        return _line_of(str(error)) or type(error).__name__
    messages, cause = [], error.java_exception
    while cause is not None:
        messages.append(said_by(cause.toString(), cause.getMessage()))
        cause = cause.getCause()
    return sentence_of(messages) or type(error).__name__


def said_by(error: str, message: str | None) -> str:
    """The message of an error of Java; the whole error where only its class shows that the message quotes a row: what
    is recorded of it later is without such values (`sluice.failures.error_chains`).

    Parameters
    ----------
    error: its class and its message.
    """
    if not message:
        return error
    is_known_by_class = without_row_values(message) == message and without_row_values(error) != error
    return error if is_known_by_class else message


_CONDITION = re.compile(r"\[(?P<condition>[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] ")
"""How every error of Spark's catalogue begins. Its sentence names what it is about: a file, a column, a value."""

_WRAPPERS = frozenset({"TASK_WRITE_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "STREAM_FAILED"})
"""Conditions that only say that something inside failed."""


def sentence_of(messages: Sequence[str]) -> str:
    """What a chain of errors says: the outermost sentence of Spark's catalogue that names what it is about, and the
    innermost cause, which says why.

    Parameters
    ----------
    messages: the outermost first.
    """
    lines = [line for message in messages if (line := _line_of(message))]
    if not lines:
        return ""
    named = next((line for line in lines if _is_named(line)), None)
    return lines[-1] if named is None or lines[-1] in named else f"{named}: {lines[-1]}"


def _is_named(line: str) -> bool:
    found = _CONDITION.match(line)
    return found is not None and found["condition"] not in _WRAPPERS


def _line_of(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].rstrip(".;")


_PROBED = {
    "Iceberg": "org.apache.iceberg.spark.SparkCatalog",
    "Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Hadoop S3A": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}
"""One class of each component that must match Spark. The name of its jar contains the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVersions:
    """The versions on the class path. jars: the file name of each component's jar; empty when it is missing."""

    pyspark: str
    spark: str
    hadoop: str
    jars: Mapping[str, str]


def require_matching_jars(spark: SparkSession) -> None:
    """Check that everything on the class path was built for this pyspark.

    Raises
    ------
    SettingsError: when something is missing or has another version.
    """
    if mismatch := find_mismatch(_find_versions(spark)):
        raise SettingsError(mismatch, next_step="Run `make jars`, and check that SPARK_HOME names no other Spark.")


def find_mismatch(found: FoundVersions) -> str:
    """Describe the first mismatch in one sentence; empty when there is none."""
    if found.spark != found.pyspark:
        return f"pyspark has version {found.pyspark}, and its Spark has version {found.spark}."
    minor = found.pyspark.rpartition(".")[0]
    needed = {
        "Iceberg": f"iceberg-spark-runtime-{minor}_",
        "Kafka source": f"-{found.pyspark}.jar",
        "Hadoop S3A": f"hadoop-aws-{found.hadoop}.jar",
    }
    for part, jar in found.jars.items():
        if not jar:
            return f"The class path has no {part}: {_PROBED[part]} is missing."
        if needed[part] not in jar:
            return f"The {part} on the class path is {jar}; Spark {found.spark} needs {needed[part]}."
    return ""


def _find_versions(spark: SparkSession) -> FoundVersions:
    jvm = jvm_of(spark)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    jars = {}
    for part, name in _PROBED.items():
        try:
            source = loader.loadClass(name).getProtectionDomain().getCodeSource()
        except Py4JJavaError:  # ClassNotFoundException: reported as missing
            jars[part] = ""
        else:
            jars[part] = re.sub(r".*/", "", source.getLocation().toString())
    return FoundVersions(
        pyspark=pyspark.__version__,
        spark=spark.version,
        hadoop=jvm.org.apache.hadoop.util.VersionInfo.getVersion(),
        jars=jars,
    )
