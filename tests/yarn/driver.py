"""A driver that does nothing: it beats, and ends when its lease is lost. With the argument `hangs` it goes on.

Only an application with a Spark session is told as running by YARN.
"""

from __future__ import annotations

import os
import sys
import time

from pyspark.sql import SparkSession

from sluice.ledger.connection import open_ledger
from sluice.ledger.runs import beat
from sluice.settings import take_settings_file

LONGEST_SECONDS = 900.0
"""What a test leaves behind ends by itself."""


def main() -> None:
    """Beat until the lease is lost."""
    take_settings_file()
    spark = SparkSession.builder.config("spark.executor.instances", "1").getOrCreate()
    deadline = time.monotonic() + LONGEST_SECONDS
    with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger:
        while time.monotonic() < deadline and (
            "hangs" in sys.argv or beat(ledger, os.environ["SLUICE_RUN_ID"]).holds_lease
        ):
            time.sleep(0.5)
    spark.stop()


if __name__ == "__main__":
    main()
