"""Supervision of streams: observe, decide, act. One stream over time, from its desired state to its restarts."""
