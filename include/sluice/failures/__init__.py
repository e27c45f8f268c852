"""Failures: from the chain of errors behind one to its class, its reason and the next step for the on-call."""
