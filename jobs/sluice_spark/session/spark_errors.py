"""Reads the errors of Spark and of its Java side."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException


def first_line(error: PySparkException | Py4JJavaError) -> str:
    """What Spark says first; of an error that PySpark has no class for, what its innermost cause says."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.getMessage() or cause.toString())
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
