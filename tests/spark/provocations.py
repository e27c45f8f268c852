"""All provoked failures. `record_failures.py` runs all of them and writes what they raised into the corpus, and
`test_failures.py` runs the cheap ones in test runs.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.spark.provoked_services import (
    catalog_away,
    catalog_away_for_the_platform,
    catalog_busy,
    catalog_busy_for_the_platform,
    catalog_refuses_the_credential,
    checkpoint_store_away,
    commit_conflict,
    kafka_away,
    ledger_away,
    merge_conflict,
    object_store_away,
    object_store_refuses,
    offsets_out_of_range,
    table_missing,
    table_missing_in_spark,
    topic_missing,
    topic_recreated,
)
from tests.spark.provoked_streams import (
    ambiguous_merge,
    checkpoint_metadata_lost,
    column_missing,
    disk_full,
    division_by_zero,
    file_vanished,
    function_cannot_reach,
    function_raises,
    java_out_of_memory,
    malformed_record,
    module_missing,
    no_space_for_python,
    null_in_a_required_column,
    offset_log_damaged,
    python_out_of_memory,
    query_not_parsed,
    query_refused,
    raised_on_purpose,
    rows_have_another_type,
    snapshot_expired,
    state_lost,
    stateful_query_changed,
    target_lost_a_column,
    transformation_raises,
    value_refused,
    worker_died,
    write_of_another_type,
)
from tests.spark.provoking import Place

CHEAP: tuple[Callable[[Place], None], ...] = (
    topic_missing,
    offsets_out_of_range,
    catalog_away,
    commit_conflict,
    value_refused,
    column_missing,
    offset_log_damaged,
    function_raises,
    transformation_raises,
    ledger_away,
)
"""What test runs provoke again, together some ten seconds; those with a topic only in `make test-full`."""

COSTLY: tuple[Callable[[Place], None], ...] = (
    kafka_away,
    topic_recreated,
    object_store_refuses,
    object_store_away,
    checkpoint_store_away,
    catalog_away_for_the_platform,
    catalog_refuses_the_credential,
    catalog_busy,
    catalog_busy_for_the_platform,
    merge_conflict,
    table_missing,
    table_missing_in_spark,
    snapshot_expired,
    file_vanished,
    malformed_record,
    division_by_zero,
    null_in_a_required_column,
    raised_on_purpose,
    ambiguous_merge,
    target_lost_a_column,
    rows_have_another_type,
    write_of_another_type,
    checkpoint_metadata_lost,
    state_lost,
    stateful_query_changed,
    worker_died,
    python_out_of_memory,
    no_space_for_python,
    java_out_of_memory,
    disk_full,
    function_cannot_reach,
    module_missing,
    query_refused,
    query_not_parsed,
)
"""What was provoked once, for the corpus."""
