"""Drivers as applications of a cluster: launched by `spark-submit`, found by their tag, seen by its own API."""
