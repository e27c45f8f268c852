"""What the ledger knows: frozen values without behaviour, one module for each kind of record."""
