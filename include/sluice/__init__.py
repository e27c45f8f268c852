"""Sluice: streams and tables of a lakehouse as first-class citizens of Apache Airflow."""
