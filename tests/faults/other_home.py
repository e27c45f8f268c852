"""A worker of another host, whose files differ: `python -m tests.faults.other_home STREAM`.

Every five seconds it supervises the stream by the declarations of its own `SLUICE_PIPELINES`, as the task of the
stream does where it runs; until it is ended.
"""

from __future__ import annotations

import sys
import time

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import SluiceError
from sluice.supervision.supervisor import supervise
from sluice_airflow.composition import load_deployment


def main() -> None:
    """Supervise one stream for ever."""
    stream = sys.argv[1]
    deployment = load_deployment()
    wanted = load_declarations(deployment.settings.pipelines, only=stream).stream(stream)
    with deployment.open_ledger() as ledger:
        supervisor = deployment.supervisor(ledger, launched_by="a worker of another host")
        while True:
            try:
                sys.stdout.write(f"{supervise(supervisor, wanted).decision.explanation}\n")
            except SluiceError as error:  # another supervisor was faster
                sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
            time.sleep(5)  # between two looks, as a task has them


if __name__ == "__main__":
    main()
