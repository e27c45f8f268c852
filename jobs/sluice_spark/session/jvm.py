"""Access to the JVM of a Spark session, for what PySpark has no API for."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from sluice.errors import SluiceError

_CLOSED = "This Spark session has no JVM: it is closed."

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
    gateway = spark.sparkContext._gateway
    if gateway is None:
        raise SluiceError(_CLOSED)
    token = gateway.gateway_parameters.auth_token
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark gives it no types
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = jvm_of(spark).java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)


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
