"""Drivers as processes: how they are started so that they outlive whoever asked, seen, and ended."""
