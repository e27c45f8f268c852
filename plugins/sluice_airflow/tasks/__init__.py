"""What tasks do when they run. DAG files never import these modules at their top: they import the ledger's SQLAlchemy,
launchers and clients, which would slow every parse. Operators and builders import them in the body of a task.
"""
