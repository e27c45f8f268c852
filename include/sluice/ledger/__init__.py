"""The ledger: the database of runs, desired states, generations, batches, table maintenance and checkpoint checks.

connection      `open_ledger`
records         the frozen observations that the repositories take and return
stored_values   how such a record is stored as a row, and made from one
models          the tables, with the columns of their records
runs, leases    admit, observe and end runs; at most one live run for each stream, with a fencing token
vacated_runs, token_raising
                end a run whose process is gone; raise the token of a run above those of its tables
desired_states  what a person requested of a stream, and what suspends it
batches, generations, progress_samples
                what streams did, and up to where
maintenance_history, quality_history, checkpoint_history
                the results of maintenance runs and checks
announcements, trigger_queries
                asynchronous queries for Airflow's triggerer
locks           the advisory locks: of intervals, maintenance runs, publications and migrations
retention       what is removed, and when
migrations      the schema's versions

Every function takes the ledger first, opens one transaction and returns frozen observations. All times are those of the
database's clock.
"""
