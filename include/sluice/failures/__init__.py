"""Failures: the chain of errors behind a failure, and the reason that follows from it."""
