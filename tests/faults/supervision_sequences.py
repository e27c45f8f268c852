"""Thousands of sequences of the model of supervision: `python -m tests.faults.supervision_sequences [SEQUENCES]`.

A part of `make drill`; `make test` runs a slice. Hypothesis prints the sequence that breaks an invariant.
"""

from __future__ import annotations

import os
import sys

import pytest

SEQUENCES = 5_000


def main() -> int:
    """Run the sequences; returns pytest's exit code."""
    os.environ["SLUICE_MODEL_SEQUENCES"] = sys.argv[1] if len(sys.argv) > 1 else str(SEQUENCES)
    return int(pytest.main(["tests/unit/supervision/test_supervision_model.py", "-q", "--timeout=0"]))


if __name__ == "__main__":
    sys.exit(main())
