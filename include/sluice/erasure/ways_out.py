"""Says how a table comes out of a state that blocks an erasure: what Spark is asked for, or a command. Pure."""

from __future__ import annotations

from sluice.publication import staging_layout

_LEFTOVERS = "What a dead one left, `sluice stream leftovers` shows and `sluice stream clean` removes."


def way_out_of(staging: str) -> str:
    """How a staging table gets rid of its files."""
    match staging.partition(".")[0]:
        case staging_layout.BACKFILL_NAMESPACE:
            return f"Repeat that backfill. {_LEFTOVERS}"
        case staging_layout.REFRESH_NAMESPACE:
            return f"Let that refresh end. {_LEFTOVERS}"
    return "Start and stop its stream, or decide about the batch: `sluice batch list`."


def written_again(table: str) -> str:
    """What writes every file of a table again."""
    return f"CALL <catalog>.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"


def upgraded(table: str) -> str:
    """How a table of the first format version gets the second, which Sluice writes."""
    return f"In Spark: `ALTER TABLE <catalog>.{table} SET TBLPROPERTIES ('format-version'='2')`. Repeat the command."
