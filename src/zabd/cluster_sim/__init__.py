"""A deterministic simulator that runs the code of production under any fault."""

from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.scenario import MemberControl, Process, ProcessKilledError, Scenario, simulate
from zabd.cluster_sim.virtual_loop import VirtualLoop

__all__ = [
    "InvariantError",
    "MemberControl",
    "Process",
    "ProcessKilledError",
    "Scenario",
    "VirtualLoop",
    "simulate",
]
