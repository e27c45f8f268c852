"""The operators that Sluice adds to Airflow."""
