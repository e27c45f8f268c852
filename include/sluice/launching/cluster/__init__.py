"""Drivers as applications of a cluster: submitted with `spark-submit`, found by their tag, observed by its API."""
