"""What a page asks Airflow for, and which buttons a person gets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fixtures.sample_declarations import write_continuous_stream, write_table
from tests.unit.backfill.test_backfill_plan import SEEN
from tests.unit.pages.test_line_selection import LINES

from sluice.backfill.backfill_plan import BackfillObservation, TargetReader, plan_backfill
from sluice.backfill.intervals import Follower, declarations_digest, parse_interval
from sluice.backfill.read_bounds import InputBound
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import UsageError
from sluice.operations import OperationVerb
from sluice.pages.job_plans import (
    BATCH_WORDS,
    MOST_INTERVALS,
    as_confirmed,
    backfill_request,
    maintenance_request,
)
from sluice.pages.page_actions import MEANINGS, PageVerb, verbs_for
from sluice.pages.page_figures import DONE_SENTENCES, DoneWord
from sluice.publication.held_decisions import BATCH_VERBS
from sluice.supervision.stream_verdict import StreamState

BY_DAY = "backfill: {column: at, interval: day, at_once: 2}\n"


def stream(folder: Path, *, more: str = BY_DAY) -> LoadedStream:
    """A declared stream."""
    return declared(folder, more=more).stream("clicks")


def declared(folder: Path, *, more: str = BY_DAY) -> Declarations:
    """A declared stream and its tables."""
    for table in ("bronze.flights", "silver.flights"):
        write_table(folder, table)
    write_continuous_stream(folder, "clicks", more=more)
    return load_declarations(folder)


def test_a_backfill_is_asked_for_by_the_starts_of_its_first_and_last_interval(tmp_path: Path) -> None:
    declarations, whole = declared(tmp_path), parse_interval("2013-01-05", "2013-01-08")
    wanted = declarations.stream("clicks")

    asked = backfill_request(declarations, wanted, whole)

    assert asked.path == "backfills"
    assert asked.body == {
        "dag_id": "clicks__backfill",
        "from_date": "2013-01-05T00:00:00+00:00",
        "to_date": "2013-01-07T00:00:00+00:00",
        "max_active_runs": 2,
        "reprocess_behavior": "completed",
        "dag_run_conf": {"agreed": declarations_digest(declarations, wanted, whole)},
    }


def test_a_page_asks_for_no_endless_backfill(tmp_path: Path) -> None:
    declarations, first = declared(tmp_path), parse_interval("2013-01-05", "2013-01-06")
    wanted = declarations.stream("clicks")
    longest = replace(first, end=first.start + timedelta(days=MOST_INTERVALS))

    assert backfill_request(declarations, wanted, longest).body["to_date"] == "2014-02-08T00:00:00+00:00"
    with pytest.raises(UsageError, match="401 days; 400 are allowed at most"):
        backfill_request(declarations, wanted, replace(longest, end=longest.end + timedelta(days=1)))


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("2013-01-05T10:00", "2013-01-06", "is inside one"),
        ("2013-01-06", "2013-01-05", "not after its start"),
        ("<script>", "2013-01-05", "script"),
    ],
)
def test_an_interval_that_is_none_is_refused(tmp_path: Path, start: str, end: str, said: str) -> None:
    declarations = declared(tmp_path)

    with pytest.raises(UsageError, match=said):
        backfill_request(declarations, declarations.stream("clicks"), parse_interval(start, end))


def test_a_stream_without_a_backfill_is_not_asked_for_one(tmp_path: Path) -> None:
    declarations = declared(tmp_path, more="")

    with pytest.raises(UsageError, match="has no key `backfill`"):
        backfill_request(declarations, declarations.stream("clicks"), parse_interval("2013-01-05", "2013-01-06"))


def test_what_a_backfill_computes_and_brings_back_and_who_reads_it_is_agreed_to_but_no_position(tmp_path: Path) -> None:
    own = Follower(stream=stream(tmp_path), interval=SEEN.interval)
    longer = replace(own, interval=replace(SEEN.interval, end=SEEN.interval.end + timedelta(days=1)))
    (tmp_path / "changed").mkdir()
    changed = replace(own, stream=stream(tmp_path / "changed", more=BY_DAY.replace("2", "3")))
    reader = TargetReader(stream="daily", input="rows", on_overwrite="skip")
    back = InputBound(input="rows", returning=("1:3",))

    def digest(seen: BackfillObservation = SEEN, *computed: Follower) -> str:
        return as_confirmed(plan_backfill(seen), computed or (own,)).digest

    assert digest() == digest(replace(SEEN, head=9, published=None, sources=(InputBound(input="rows"),)))
    others = [digest(replace(SEEN, readers=(reader,))), digest(replace(SEEN, sources=(back,)))]
    others += [digest(SEEN, longer), digest(SEEN, changed)]
    assert len({digest(), *others}) == 5


def test_maintenance_is_asked_for_one_table_alone() -> None:
    assert maintenance_request("silver.flights").body == {"logical_date": None, "conf": {"tables": ["silver.flights"]}}
    assert maintenance_request("silver.flights").path == "dags/table_maintenance/dagRuns"


def test_a_reset_that_another_person_must_approve_is_no_button() -> None:
    line = replace(LINES[0], has_live_run=False, state=StreamState.STOPPED)

    assert verbs_for(line, resets_need_another=False) == (PageVerb.START, PageVerb.REPAIR, PageVerb.RESET)
    assert verbs_for(line, resets_need_another=True) == (PageVerb.START,)


@pytest.mark.parametrize("has_live_run", [True, False])
def test_a_stream_that_rejected_everything_offers_the_start_that_settles_it(has_live_run: bool) -> None:
    line = replace(LINES[0], has_live_run=has_live_run, state=StreamState.ALL_REJECTED, is_healthy=False)

    assert verbs_for(line, resets_need_another=False)[0] is PageVerb.START


def test_every_verb_has_its_words() -> None:
    assert set(MEANINGS) == set(PageVerb)
    assert set(DONE_SENTENCES) == set(DoneWord)
    assert {str(word) for word in DoneWord} >= {
        *PageVerb,
        OperationVerb.BACKFILL,
        OperationVerb.MAINTAIN,
        *BATCH_VERBS,
    }
    assert set(BATCH_WORDS) == set(BATCH_VERBS)
