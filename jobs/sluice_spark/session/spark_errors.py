"""Messages of errors of Spark and of the JVM."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException


def first_line(error: PySparkException | Py4JJavaError) -> str:
    """The first line of an error's message; for a Java error unknown to PySpark, that of its innermost cause."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.getMessage() or cause.toString())
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
