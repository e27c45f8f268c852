"""What a message, a log, a page or a table of the ledger may show: plain characters and no secrets."""
