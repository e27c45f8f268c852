"""Which work item a thread works for, so that every line of an application's log can name it.

In Python it is a context variable. Python 3.11 does not hand the context on to threads, so an application asks for that
once (`hand_context_on`), as `python -X thread_inherit_context=1` does from 3.14 on. What the JVM calls in Python, on
threads of its own, is wrapped by whoever passes it to Spark (`in_this_context`).

In the JVM it is a value of log4j's thread context, which threads inherit, and a local property of Spark, from which
tasks have it. A thread of a pool names the item for which it was made.

Source: https://spark.apache.org/docs/4.1.0/configuration.html#configuring-logging (`mdc.`), and
https://docs.python.org/3.14/using/cmdline.html#cmdoption-X (`thread_inherit_context`)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import ParamSpec, TypeVar
from uuid import UUID

from pyspark.sql import SparkSession

from sluice.work.read_item_log import item_label
from sluice_spark.session.jvm import jvm_of

_P = ParamSpec("_P")
_T = TypeVar("_T")

_item: ContextVar[str] = ContextVar("item", default="")

MDC_KEY = "mdc.item"
"""The key in log4j's thread context, and the name of Spark's local property. `log4j2.properties` has it, too."""


@contextmanager
def in_item(item: UUID) -> Iterator[None]:
    """Work for an item: lines that are logged in the block, and in threads that begin in it, name the item."""
    token = _item.set(item_label(item))
    try:
        yield
    finally:
        _item.reset(token)


@contextmanager
def named_in_jvm(spark: SparkSession) -> Iterator[None]:
    """Let the JVM name the item of this thread in what it logs: in this thread, in those that begin in the block, in
    tasks. Nothing changes without an item."""
    item = _item.get()
    if not item:
        yield
        return
    named = jvm_of(spark).org.apache.logging.log4j.ThreadContext
    named.put(MDC_KEY, item)
    spark.sparkContext.setLocalProperty(MDC_KEY, item)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty(MDC_KEY, None)  # type: ignore[arg-type]  # it removes the property
        named.remove(MDC_KEY)


def name_item(record: logging.LogRecord) -> bool:
    """A filter of a log handler, which gives each record its `item`: `[3f2b8c1d] `, or nothing."""
    item = _item.get()
    record.item = f"[{item}] " if item else ""
    return True


def in_this_context(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function in a copy of the present context, for calls that come from another thread."""
    context = copy_context()

    def call(*arguments: _P.args, **named: _P.kwargs) -> _T:
        return context.copy().run(function, *arguments, **named)

    return call


def hand_context_on() -> None:
    """Let threads of this process inherit the context of the thread that starts them, and let each call that is given
    to a pool of threads have the context of whoever gives it. For the main module of an application, at its start."""
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_in_context(thread: threading.Thread) -> None:
        run = in_this_context(thread.run)

        def run_once() -> None:
            del thread.run  # the instance's, which would keep the thread itself
            run()

        thread.run = run_once  # type: ignore[method-assign]
        start(thread)

    def submit_in_context(
        pool: ThreadPoolExecutor, function: Callable[_P, _T], /, *arguments: _P.args, **named: _P.kwargs
    ) -> Future[_T]:
        return submit(pool, in_this_context(function), *arguments, **named)

    setattr(threading.Thread, "start", start_in_context)  # noqa: B010  # mypy compares the names of arguments
    setattr(ThreadPoolExecutor, "submit", submit_in_context)  # noqa: B010
