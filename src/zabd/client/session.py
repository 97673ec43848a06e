"""A client's session as a state machine without I/O: bytes, time and wishes in, effects out."""
