"""What the triggerer runs for deferred tasks. A trigger's arguments lie in Airflow's database: small, no secrets."""
