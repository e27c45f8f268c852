"""Declarations in, DAGs out. Nothing is looked up while Airflow parses: no service, no connection, no settings."""
