"""Consensus: election, discovery, synchronisation and broadcast of opaque payloads, no I/O."""
