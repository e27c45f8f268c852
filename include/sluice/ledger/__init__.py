"""The ledger: the database of runs, desired states, generations, batches, table maintenance and checkpoint checks.

connection      `open_ledger`
ledger_table, stored_values
                a table has the columns of its record, and its rows become records
run_values      runs and desired states as values, which DAG files may import
runs, run_leases
                admit, observe and end runs; at most one live run for each stream, with a fencing token
desired_states  what a person requested of a stream, and what suspends it
control_requests, control_values
                what a person asked of the DAG `stream_control`, once
generations, next_generation, refreshed_generations
                the checkpoints of a stream; leave one behind; take one over after a refresh
batches, batch_findings, held_batches, hourly_figures, progress_samples, source_schemas, stream_troubles
                what streams did, up to where, and what is wrong with them
refreshes, backfill_attempts
                tables that are rebuilt, and intervals that are replaced
work_items, applications, work_tables, work_values
                the queue of bounded work, and the Spark applications that do it
maintenance_runs, recorded_checks
                the results of maintenance runs and checks
stream_records, stream_figures
                many streams at once
announcements, trigger_queries
                publications that Airflow does not know yet, and increments that ended well; queries of its triggerer
airflow_owner, events, locks
                whose the ledger is, and the newest pass of its reconciler; what was decided; the advisory locks
retention       what is removed, and when
migrations      the schema's versions

A file has its subject whole: the frozen record, the table with the record's columns, and the queries.

Every function takes the ledger first, opens one transaction and returns frozen observations. All times are those of the
database's clock.
"""
