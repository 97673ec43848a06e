"""A deterministic simulator that runs the code of production under any fault."""

from zabd.cluster_sim.virtual_loop import VirtualLoop

__all__ = ["VirtualLoop"]
