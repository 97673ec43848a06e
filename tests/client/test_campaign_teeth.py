"""Recipes with a mistake in them: a campaign finds each within a few seeds."""

import asyncio
import re
from typing import Any, NamedTuple

import pytest
from tests.client.recipe_campaigns import campaigns

from zabd.client.recipes.bound import Bound
from zabd.client.recipes.claim import Claim
from zabd.client.recipes.contenders import READER, Rule
from zabd.client.recipes.dedup import Attempt, run
from zabd.client.recipes.election import Election
from zabd.client.recipes.partitioner import Partitioner
from zabd.client.recipes.persistent_node import PersistentNode
from zabd.client.recipes.place import Place
from zabd.client.recipes.receipt import Receipt
from zabd.client.recipes.rwlock import ReadLock
from zabd.client.recipes.semaphore import Semaphore

pytestmark = pytest.mark.sim

SEEDS_MAX = 30

true_count: Any = Semaphore._count


async def not_found(*_: object) -> bool:
    """Whatever was looked for."""
    return False


async def wait_for_one_wake(place: Place) -> None:
    """And then think that it is our turn, whoever it was that went."""
    if (ahead := (await place.look()).ahead) is not None:
        await place.wait_for(ahead)


async def leave_while_taking(place: Place, outcome: str) -> None:
    """Delete the znode if there is one already."""
    if place.name:
        await place.bound.delete(place.path)
    place.left(outcome)


async def stand_down_first(election: Election, term: "asyncio.Future[object]") -> None:
    """And end the work then."""
    await election.stand_down()
    term.cancel()
    await asyncio.wait([term])


async def leave_and_work_on(partitioner: Partitioner, dividing: "asyncio.Task[None]") -> None:
    """The workers end some time, it is thought."""
    dividing.cancel()
    await partitioner._party.leave()


async def remove_at_once(claim: Claim) -> None:
    """Not waiting for a creation that is under way."""
    if claim.stat is not None:
        await claim._require().delete(claim.path)
    claim.removed()


async def count_one_less(semaphore: Semaphore, *given: object) -> int:
    """One too many is let in."""
    count: int = await true_count(semaphore, *given)
    return count - 1


async def stop_at_once(
    task: "asyncio.Task[object]", attempt: Attempt, _request: object, *, outcome: str
) -> None:
    """The function has no time to end."""
    task.cancel()
    if attempt.failure is not None:
        attempt.forsake()
    else:
        await attempt.leave_in_doubt(outcome)


async def close_without_sync(node: PersistentNode, task: "asyncio.Task[None]") -> None:
    """Delete what this server shows, which may be behind."""
    task.cancel()
    await asyncio.wait([task])
    if node._stands and not node._client.closed:
        await Bound(node._client, node._client.session_id).delete(node.path)


class Mistake(NamedTuple):
    """An attribute of the recipes, and what stands there instead."""

    campaign: str
    owner: object
    name: str
    instead: Any


MISTAKES = {
    "a lock's lost reply is not resolved": Mistake("lock", Place, "find_own", not_found),
    "a cancelled acquire deletes before it has created": Mistake(
        "lock", Place, "_leave", leave_while_taking
    ),
    "a wake is taken for the turn": Mistake("lock", Place, "wait_for_turn", wait_for_one_wake),
    "a reader waits for nobody": Mistake(
        "read_write_lock", ReadLock, "rule", Rule(READER.contends, re.compile("(nobody)"))
    ),
    "a leader stands down before its work has ended": Mistake(
        "election", Election, "_end", stand_down_first
    ),
    "a partitioner leaves while its workers work": Mistake(
        "partitioner", Partitioner, "_end", leave_and_work_on
    ),
    "a semaphore counts one lease too few": Mistake(
        "semaphore", Semaphore, "_count", count_one_less
    ),
    "a lease that is being made is not waited for": Mistake(
        "semaphore", Claim, "_remove", remove_at_once
    ),
    "an addition in doubt is made again": Mistake("counter", Receipt, "_done", not_found),
    "a put in doubt is made again": Mistake("queue", Receipt, "_done", not_found),
    "a key is given back while its function runs": Mistake("dedup", run, "_stop", stop_at_once),
    "a znode's create in flight is forgotten": Mistake(
        "persistent_node", PersistentNode, "_remove", close_without_sync
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a campaign that finds nothing would say nothing."""
    monkeypatch.setattr(mistake.owner, mistake.name, mistake.instead)
    campaign = campaigns()[mistake.campaign]
    for seed in range(SEEDS_MAX):
        try:
            campaign(seed)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - however it is found
            print(f"seed {seed}: {type(error).__name__}: {error}")  # noqa: T201 - told with -s
            return
    pytest.fail(f"not found in {SEEDS_MAX} seeds")
