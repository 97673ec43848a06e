"""From what was counted to the verdict."""

from collections import Counter

from zabd.cli.demo.performance import Performance
from zabd.cli.demo.verdict import Verdict


def judge(play: Performance) -> Verdict:
    """Every claim of the demo, with its figure."""
    verdict = Verdict()
    _judge_requests(play, verdict)
    _judge_holder(play, verdict)
    _judge_members(play, verdict)
    return verdict


def _judge_requests(play: Performance, verdict: Verdict) -> None:
    outcomes = play.deliveries.outcomes
    keys = {outcome.delivery.key for outcome in outcomes}
    effects = Counter(effect.key for effect in play.ledger.accepted)
    once = [key for key in keys if effects[key] == 1]
    others = sorted(keys - set(once))
    verdict.add(
        "requests with exactly one effect accepted by the ledger",
        f"{len(once)} of {len(keys)}",
        holds=not others,
        wrong=f"{len(others)} requests had none or several effects, such as {others[:3]}",
    )
    replayed = sum(outcome.replayed for outcome in outcomes)
    duplicates = len(outcomes) - len(keys)
    verdict.add(
        "duplicates answered from the record, not executed",
        f"{replayed} of {duplicates}",
        holds=replayed == duplicates,
        wrong=f"{duplicates - replayed} duplicates were executed",
    )
    receipts = {effect.key: effect.receipt for effect in play.ledger.accepted}
    differing = [o.delivery.key for o in outcomes if o.receipt != receipts.get(o.delivery.key)]
    verdict.add(
        "answers that equal the one recorded",
        f"{len(outcomes) - len(differing)} of {len(outcomes)}",
        holds=not differing,
        wrong=f"different answers were given for {sorted(set(differing))[:3]}",
    )
    verdict.add(
        "deliveries that failed and were repeated", len(play.deliveries.failures), holds=None
    )


def _judge_holder(play: Performance, verdict: Verdict) -> None:
    found = play.measured
    verdict.add(
        "the stopped worker held a lock at that moment",
        "yes" if found.holder_held else "no",
        holds=found.holder_held,
        wrong="no lock znode with the token of the stopped worker was found",
    )
    verdict.add(
        "from its SIGSTOP to the end of its lock", _ms(found.holder_released_ms), holds=None
    )
    verdict.add("from its SIGSTOP to the execution elsewhere", _ms(found.takeover_ms), holds=None)
    verdict.add(
        "woken holders that acted after their session was gone",
        found.woken_effects,
        holds=found.woken_effects == 0,
        wrong=f"the woken worker sent {found.woken_effects} effects to the ledger",
    )
    refused = len(play.ledger.refused)
    verdict.add(
        "stale effects refused by their token (one is the demo's late packet)",
        refused,
        holds=found.late_refused,
        wrong="the late packet with the stopped worker's token was accepted",
    )


def _judge_members(play: Performance, verdict: Verdict) -> None:
    found = play.measured
    for what, milliseconds in found.elections:
        verdict.add(f"election: {what}", _ms(milliseconds), holds=None)
    verdict.add(
        "from the leader's death to the next acknowledged write",
        _ms(found.first_write_ms),
        holds=found.first_write_ms is not None,
        wrong="no write was acknowledged after the leader's death",
    )
    lost = {member: paths for member, paths in found.writes_lost.items() if paths}
    verdict.add(
        "acknowledged writes still there, on each member",
        f"{found.writes_acknowledged} ({found.writes_unknown} without a reply)",
        holds=not lost,
        wrong="; ".join(f"member {m} lacks {len(p)}, such as {p[0]}" for m, p in lost.items()),
    )
    states = set(found.states.values())
    agreed = len(states) == 1 and "unknown" not in next(iter(states))
    verdict.add(
        "tree digests equal on all members",
        next(iter(states))[1] if agreed else "no",
        holds=agreed,
        wrong=f"the members stand at (zxid, digest) {found.states}",
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
