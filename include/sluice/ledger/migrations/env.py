"""How Alembic reaches the ledger: on the connection, and in the transaction, that `migrations.upgrade` opened."""

from alembic import context

from sluice.ledger.ledger_table import SCHEMA, LedgerTable

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=LedgerTable.metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
