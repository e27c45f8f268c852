"""Looking: reads the ledger, processes and sources, changes nothing, and returns frozen observations."""
