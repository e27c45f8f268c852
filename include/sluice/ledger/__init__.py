"""The ledger: the database of runs, desired states, generations, batches, table maintenance and checkpoint checks.

connection      `open_ledger`: the one way in
models          the tables
runs            admit, observe and end runs; at most one live run for each stream
desired_states  what a person requested of a stream, and what suspends it
batches         what every batch did
generations     the checkpoint lineages
maintenance, quality, checkpoints
                what the upkeep of tables and checkpoints found
watching        the light asynchronous read for triggers
migrations      the schema's versions

Every function takes the ledger first, opens one transaction and returns frozen observations. The database's clock is
the only clock.
"""
