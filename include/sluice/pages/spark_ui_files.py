"""The style sheets, scripts and images of Spark's UI, from the jars of the pyspark beside this process.

A driver has the same files, but the user's code runs in it: a script that it sent would act in the name of the reader.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

_FOLDERS = {
    "static/sql/": ("spark-sql_*.jar", "org/apache/spark/sql/execution/ui/static/"),
    "static/": ("spark-core_*.jar", "org/apache/spark/ui/static/"),
}
"""The jar and the folder in it for the beginning of an address, the longest first."""

FILE_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def read_static_file(path: str) -> bytes | None:
    """A file of Spark's UI; none when it has no such file, or no pyspark is installed here.

    Parameters
    ----------
    path: below the UI's root, such as `static/webui.css`.
    """
    for beginning, (jar_name, folder) in _FOLDERS.items():
        name = path.removeprefix(beginning)
        if name == path or PurePosixPath(name).suffix not in FILE_TYPES:
            continue
        jar = _jar(jar_name)
        if jar is None:
            return None
        with ZipFile(jar) as opened:
            return opened.read(f"{folder}{name}") if f"{folder}{name}" in opened.namelist() else None
    return None


@cache
def _jar(name: str) -> Path | None:
    pyspark = find_spec("pyspark")  # finds the package without importing it
    places = pyspark.submodule_search_locations if pyspark is not None else None
    return next((jar for place in places or () for jar in sorted(Path(place, "jars").glob(name))), None)
