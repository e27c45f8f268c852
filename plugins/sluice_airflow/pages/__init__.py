"""The pages of Sluice inside Airflow's web server: who may see and do what; `sluice.pages` says what they show."""
