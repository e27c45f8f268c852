"""The ledger: the database that remembers runs, wishes, generations, batches, upkeep of tables and checkpoint checks.

connection      `open_ledger`: the one way in
models          the tables
runs            admit, observe and end runs; at most one live run for each stream
wishes          what a person or the platform asked of a stream
batches         what every batch did
generations     the checkpoint lineages
maintenance, quality, checkpoints
                what the upkeep of tables and checkpoints found
watching        the light asynchronous read for triggers
migrations      the schema's versions

Every function takes the ledger first, opens one transaction and returns frozen observations. The database's clock is
the only clock.
"""
