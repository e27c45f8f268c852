"""Bring what must be there before anything of Sluice can run: `python3 include/sluice/stack/bootstrap.py`.

Purpose: a fresh Linux machine with Python and make becomes one on which `sluice` runs.
How it works: `.venv` from `uv.lock`; Java found, or installed through the system's package manager; the jars of
`ivy.lock`, shared by all clones in the user's cache; an archive of Spark's classes; `.sluice/bootstrap.json` for those
who need to know where all of it is.
What it does not do: start anything that stays, or change anything outside the project, the user's cache and, where Java
is missing and the person may install packages, the system's packages (`SLUICE_NO_INSTALL=1` forbids that).
Repeated it takes less than a second and needs no network. Ctrl-C leaves nothing half-made behind.

This file is run as a script by any Python 3, so nothing above the version check may need a newer one.
"""

import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def main() -> int:
    """Bring everything and return the exit code: 0 ready, 1 something is missing, 130 interrupted."""
    import os
    import signal

    from sluice.errors import SluiceError
    from sluice.setup.command_runner import CommandRunner
    from sluice.setup.installation import Installation, cache_folder
    from sluice.setup.setup_progress import Progress

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    installation = Installation(
        root=Path(__file__).resolve().parents[3],
        cache=cache_folder(os.environ),
        environment=os.environ,
        runner=CommandRunner(),
        progress=Progress(),
    )
    try:
        installation.provide()
    except (SluiceError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        sys.stderr.write(f"bootstrap: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("bootstrap: interrupted; run the command again to go on.\n")
        return 130
    return 0


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(
            "bootstrap: Sluice needs Python {}.{} or newer and {} is {}.{}. Install one, then name it: "
            "make PYTHON=/path/to/python3 …".format(*OLDEST_PYTHON, sys.executable, *sys.version_info[:2])
        )
    # Only the package's root, not this file's own folder: a neighbour here may be called like a standard module.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.exit(main())
