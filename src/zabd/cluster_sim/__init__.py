"""A deterministic simulator that runs the code of production under any fault."""

from zabd.cluster_sim.core_level import Outcome
from zabd.cluster_sim.history import Expire, Operation, Refusal
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.linearizability import Verdict, check_by_zxid, check_linearizable
from zabd.cluster_sim.resource import Resource
from zabd.cluster_sim.scenario import MemberControl, Process, ProcessKilledError, Scenario, simulate
from zabd.cluster_sim.sweep import run_seeds
from zabd.cluster_sim.virtual_loop import VirtualLoop

__all__ = [
    "Expire",
    "InvariantError",
    "MemberControl",
    "Operation",
    "Outcome",
    "Process",
    "ProcessKilledError",
    "Refusal",
    "Resource",
    "Scenario",
    "Verdict",
    "VirtualLoop",
    "check_by_zxid",
    "check_linearizable",
    "run_seeds",
    "simulate",
]
