"""What must always hold, by the names of the published specifications, and how a breach is told.

Each check has an id and a name. The ids group them: Z the protocol, A checks inside an action, D
durability, R replicated state, S sessions, C what a client may observe, W watches, L liveness, X
the simulator about itself.

The names are those of ZooKeeper's TLA+ specifications (`Zab.tla`, `ZkV3_7_0.tla`) and of Ouyang et
al., "Multi-Grained Specifications for Distributed System Model Checking and Verification" (EuroSys
2025), where they have one.
"""

from typing import Final

INVARIANTS: Final[dict[str, tuple[str, str]]] = {
    "Z1": ("Integrity", "what is delivered was proposed, and a zxid has one content for ever"),
    "Z2": ("TotalOrder", "all members deliver in one order"),
    "Z3": ("Agreement", "of two delivered histories one continues the other"),
    "Z4": ("PrefixConsistency", "of two committed histories the shorter is a prefix of the longer"),
    "Z5": ("LocalPrimaryOrder", "what one leader broadcast is delivered in its order, gapless"),
    "Z6": ("GlobalPrimaryOrder", "epochs never decrease along the delivered history"),
    "Z7": ("PrimaryIntegrity", "after an epoch's first broadcast nothing of an older one commits"),
    "Z8": ("Leadership", "an epoch has at most one established leader, in one incarnation"),
    "Z9": ("LeaderLogCompleteness", "an established leader has every committed transaction"),
    "Z10": ("CommittedLogDurability", "nothing committed is cut off or replaced"),
    "Z11": ("ProcessConsistency", "a synchronised follower's history is its leader's"),
    "Z12": ("CommittedLogMonotonicity", "the latest leader's commit point is never behind"),
    "Z13": ("ChosenForever", "what a quorum has acknowledged is in every later leader's history"),
    "Z14": ("InitialHistory", "a leadership stands for the history that its quorum acknowledged"),
    "Z15": ("Quorums", "decisions count more than half of the voters, each once"),
    "Z16": ("FreshEpoch", "a new epoch is greater than every promise of its quorum"),
    "Z17": ("FollowerNotAhead", "a leader goes on only if nobody in its quorum has more history"),
    "A1": ("StateConsistent", "a message is handled only in the phase that expects it"),
    "A2": ("ProposalConsistent", "a proposal follows the last one"),
    "A3": ("CommitConsistent", "what counts as committed is committed"),
    "A4": ("AckConsistent", "the ack of NEWLEADER comes before acks of proposals"),
    "A5": ("MessageLegal", "no message reaches one who can never receive it"),
    "D1": ("DurableBeforeAck", "an ack speaks of what is durable"),
    "D2": ("DurableSelfAck", "a leader counts itself only for what is durable on its own disk"),
    "D3": ("EpochBeforeAck", "an epoch is durable before it is promised"),
    "D4": ("SyncOrder", "first the history, then the epoch, then the ack of NEWLEADER"),
    "D5": ("ReportedIsDurable", "a vote speaks of what a restart would load"),
    "D6": ("ReplyMeansChosen", "what a leader commits is durable on a quorum"),
    "D7": ("FsyncErrorIsFatal", "nothing rests on a file after a failed write or sync of it"),
    "D8": ("NoSilentLoss", "recovery drops nothing that was acknowledged"),
    "D9": ("AtomicReplace", "a small file is replaced as a whole, a file in use keeps its name"),
    "D10": ("EpochMonotonic", "promises never decrease, over restarts"),
    "D11": ("BootOK", "after a crash at any point a member starts again by itself"),
    "R1": ("DigestAgreement", "members at one zxid have one state"),
    "R2": ("ExactReplay", "snapshot and log give the state, and a suffix twice changes nothing"),
    "R3": ("SnapshotValid", "only a whole snapshot is used, and the log goes on where it stands"),
    "R4": ("PureApply", "what a txn does depends on the state alone"),
    "R5": ("MultiAtomic", "a multi is done as a whole, or not at all"),
    "R6": ("ParentCounters", "pzxid and the count of creates follow each create and delete"),
    "C9": ("LockExclusion", "who holds a lock is never refused by the resource it protects"),
    "P1": ("OneOwner", "who begins owns the key at that zxid"),
    "P2": ("OneOutcome", "one outcome is recorded, by who owns the key at that zxid"),
    "P3": ("Replay", "what is recorded is not begun again, and is what every caller is given"),
    "P4": ("MismatchIsLoud", "a request with another payload is neither run nor replayed"),
    "P5": ("NoStuckKey", "nothing stands in a queue without a session behind it"),
    "P6": ("DoubtIsVisible", "who comes after an attempt in doubt counts it and keeps its journal"),
    "P7": ("BoundedFanOut", "the end of a place wakes only the next one"),
    "P8": ("NoLeakedZnode", "a session has one place in a queue"),
    "R7": ("SequenceUnique", "no two sequential creates get one path"),
    "R8": ("PrepareOnce", "a committed txn follows from all that was committed before it"),
    "R9": ("ZxidShape", "a leader counts from 1, by 1, within its own epoch"),
    "S1": ("EphemeralOwned", "an ephemeral's owner is an open session that lists it"),
    "S2": ("EphemeralIffSession", "the close of a session removes all of its ephemerals"),
    "S3": ("NothingAfterClose", "no transaction of a session follows its close"),
    "S4": ("NoPrematureExpiry", "no session expires whose client the leader can know to be heard"),
    "S5": ("ExpiryIsTold", "a client is told that its session is over exactly when it is"),
    "S6": ("SingleOwner", "nothing that a session left behind on another member takes effect"),
    "S7": ("SessionIdentity", "an id is given once, and serves only who knows its password"),
    "S8": ("SessionsSurvive", "sessions outlive restarts, and expire when their clients are gone"),
    "C1": ("LinearizableWrites", "the order of writes respects real time"),
    "C2": ("FifoClientOrder", "a session's operations are done and answered in order"),
    "C3": ("SessionReads", "a session never reads what is older than what it saw or wrote"),
    "C4": ("NoTimeTravel", "a member takes no client that has seen more than the member has"),
    "C5": ("NoDirtyRead", "nothing is shown that is not committed"),
    "C6": ("Sync", "a confirmed leader has everything committed before it was asked"),
    "C7": ("UnknownIsUnknown", "what ended in connection loss took effect once at most"),
    "C8": ("Timeliness", "no member serves what is older than a stated bound"),
    "D12": ("AcknowledgedForever", "a write that was acknowledged to a client is there"),
    "W1": ("WatchBeforeData", "the event of a change comes before any reply that reveals it"),
    "W2": ("WatchOrder", "the events of a client come in the order of the changes"),
    "W3": ("OneShot", "a watch fires once, and only what was armed fires"),
    "W4": ("NoSpurious", "an event corresponds to a change of that path"),
    "W5": ("NoLost", "a watch set again tells what changed meanwhile"),
    "W6": ("ArmOnSuccess", "a read that fails arms nothing, but for exists of what is not there"),
    "W7": ("NoGhosts", "a connection that ended has no watch"),
    "L1": ("Progress", "once faults stop, a quorum commits within the bound"),
    "L2": ("Completion", "each operation of a connected client is answered"),
    "L3": ("Convergence", "once faults stop, all reach the same position"),
    "L4": ("LeaderWithoutQuorum", "who is cut off from a quorum serves no longer than the bound"),
    "L5": ("ElectionsEnd", "elections and retries do not go on for ever"),
    "L6": ("CatchingUp", "once faults stop, one that lags comes in step with its leader"),
    "L7": ("Bounded", "what a member keeps and waits for stays within its limits"),
    "X6": ("NoException", "production code raises nothing that nobody expects"),
}


class InvariantError(Exception):
    """A check did not hold: `id`, its `name`, and what was seen, as a sentence."""

    def __init__(self, check: str, detail: str) -> None:
        self.id = check
        self.name, self.rule = INVARIANTS[check]
        self.detail = detail
        super().__init__(f"{check} {self.name} ({self.rule}): {detail}")

    def __reduce__(self) -> tuple[type["InvariantError"], tuple[str, str]]:
        # A run in another process comes back with its failure.
        return (InvariantError, (self.id, self.detail))
