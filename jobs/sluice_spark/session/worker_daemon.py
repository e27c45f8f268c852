"""The process from which Spark forks its Python workers, made so that a task begins at once.

    python -m sluice_spark.session.worker_daemon pyspark.worker

Spark's own daemon lets each worker import what it needs, and at the beginning of each task read the directory of
`pyspark.zip` once for every package that was imported from there; at its end a worker looks for garbage among all
objects of all modules. Of each task that took 0.14 s of a processor. Here the daemon imports pyspark from where it is
installed, and what decoders need, before it forks; what it holds by then is never garbage.

A worker also acknowledges at once what Spark sends for a new task. Spark sends it in small pieces, each of which waits
until the one before it is acknowledged (Nagle's algorithm), and Linux delays acknowledgements by 40 ms.

Source: `pyspark/daemon.py`, `pyspark/worker_util.py` (`setup_spark_files`) of Spark 4.1,
https://docs.python.org/3/library/gc.html#gc.freeze, and `TCP_QUICKACK` in https://man7.org/linux/man-pages/man7/tcp.7.html
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import PurePath
from socket import IPPROTO_TCP, TCP_QUICKACK, socket
from typing import Any

MODULE = "sluice_spark.session.worker_daemon"
"""This module, as Spark's setting names it."""

_DECODERS = ("sluice_spark.sources.value_decoding", "sluice_spark.sources.csv_lines")
"""They import Arrow and the decoders, of which most tasks need some."""


def without_archives(path: Sequence[str]) -> list[str]:
    """A module search path without Spark's archives, if pyspark is found without them; otherwise the same path.

    Parameters
    ----------
    path: as `sys.path` has it, where Spark puts its archives first.
    """
    installed = [entry for entry in path if not _is_archive(PurePath(entry).name)]
    is_enough = all(PathFinder.find_spec(name, installed) is not None for name in ("pyspark", "py4j"))
    return installed if is_enough else list(path)


def _is_archive(name: str) -> bool:
    is_of_python = name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith("-src.zip"))
    return is_of_python or (name.startswith("spark-core_") and name.endswith(".jar"))


def acknowledging_at_once(work: Callable[..., int]) -> Callable[..., int]:
    """A function that works on one task, with a socket to Spark that acknowledges at once what it gets.

    The option lasts until the socket sends something, so it is set for each task.

    Parameters
    ----------
    work: takes the socket and whether Spark has authenticated itself on it; returns an exit code.
    """

    def work_at_once(connection: socket, *rest: Any) -> int:
        connection.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 1)
        return work(connection, *rest)

    return work_at_once


def main() -> None:
    """Fork workers until Spark ends this process."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    daemon: Any = import_module("pyspark.daemon")  # only now: it would be imported from the archive
    daemon.worker = acknowledging_at_once(daemon.worker)
    for name in _DECODERS:
        import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
