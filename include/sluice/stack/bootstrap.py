"""Install what Sluice needs on this machine: `python3 include/sluice/stack/bootstrap.py`.

Purpose: a fresh Linux machine with Python and make becomes one on which `sluice` runs.
How it works: it makes `.venv` from `uv.lock`; finds Java, or installs it with the system's package manager; fetches the
jars of `ivy.lock` into the user's cache, which all clones share; records an archive of Spark's classes, unless
`--without-class-archive` is given; and writes to `.sluice/bootstrap.json` where Java and the jars lie.
What it does not do: it starts no process that stays, and changes nothing outside the project and the user's cache. Only
when Java is missing, and a person agrees or root runs it without a terminal, does it install one (`SLUICE_NO_INSTALL`).
A repeated run takes less than a second and needs no network. Ctrl-C leaves nothing half-made.

Any Python 3 may run this file as a script, so the code that runs before the version check must work with all of them.
"""

import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)

WITHOUT_CLASS_ARCHIVE = "--without-class-archive"


def main() -> int:
    """Install everything and return the exit code: 0 ready, 1 something is missing, 130 interrupted."""
    import os
    import signal

    from sluice.errors import SluiceError
    from sluice.setup.command_runner import CommandRunner, Progress
    from sluice.setup.installation import Installation, cache_folder

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    installation = Installation(
        root=Path(__file__).resolve().parents[3],
        cache=cache_folder(os.environ),
        environment=os.environ,
        runner=CommandRunner(),
        progress=Progress(),
    )
    try:
        installation.provide(has_class_archive=WITHOUT_CLASS_ARCHIVE not in sys.argv[1:])
    except (SluiceError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        sys.stderr.write(f"bootstrap: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("bootstrap: interrupted; run the command again to continue.\n")
        return 130
    return 0


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(
            "bootstrap: Sluice needs Python {}.{} or newer and {} is {}.{}. Install one, then name it: "
            "make PYTHON=/path/to/python3 …".format(*OLDEST_PYTHON, sys.executable, *sys.version_info[:2])
        )
    # Not this file's own folder: a module in it may have the name of a standard module.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.exit(main())
