"""A deterministic simulator that runs the code of production under any fault."""
