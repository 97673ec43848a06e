"""One member of the ensemble from client bytes in to reply bytes out, without I/O."""
