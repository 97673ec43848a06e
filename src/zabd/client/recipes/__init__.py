"""Coordination recipes on the client: dedup, lock, election and their relatives."""
