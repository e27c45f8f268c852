"""The process from which Spark forks its Python workers, made so that a task begins at once.

    python -m sluice_spark.session.worker_daemon pyspark.worker

Spark's own daemon lets each worker import what it needs, and at the beginning of each task read the directory of
`pyspark.zip` once for every package that was imported from there; at its end a worker looks for garbage among all
objects of all modules. Of each task that took 0.14 s of a processor. Here the daemon imports pyspark from where it is
installed, and what decoders need, before it forks; what it holds by then is never garbage.

Source: `pyspark/daemon.py`, `pyspark/worker_util.py` (`setup_spark_files`) of Spark 4.1, and
https://docs.python.org/3/library/gc.html#gc.freeze
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import PurePath

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


def main() -> None:
    """Fork workers until Spark ends this process."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    daemon = import_module("pyspark.daemon")  # only now: it would be imported from the archive
    for name in _DECODERS:
        import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
