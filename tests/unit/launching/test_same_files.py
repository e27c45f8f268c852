"""A driver runs the files that its run was started for, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.supervision.supervision_cases import a_run

from sluice.errors import FilesDifferError
from sluice.failure_reasons import Failure, FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of
from sluice.supervision.limits import helps_to_restart
from sluice_spark.run.run_start import require_same_files


def test_the_same_files_are_run() -> None:
    require_same_files(continuous_stream(digest="d"), a_run(digest="d"), host="worker-1")


def test_other_files_are_refused_with_the_host_and_another_start_may_find_them_in_order() -> None:
    with pytest.raises(FilesDifferError, match=r"digest new\. On worker-1, .* has the digest old") as refused:
        require_same_files(continuous_stream(digest="old"), replace(a_run(), declaration_digest="new"), host="worker-1")
    failure = classify(chain_of(refused.value))
    assert failure == Failure.of(FailureReason.FILES_DIFFER)
    assert helps_to_restart(failure.failure_class)
