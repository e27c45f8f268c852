"""Launching: starts drivers that outlive the launching process, observes them, and ends them."""
