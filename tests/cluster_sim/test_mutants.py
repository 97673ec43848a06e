"""The checks find what they are there to find: each mistake, by the seed that is on record."""

import pytest
from tests.cluster_sim.bug_gallery import COMMAND, PAGE, page, read, read_all

from zabd.cluster_sim.hunt import SEEDS_MAX, acquit, hunt
from zabd.cluster_sim.mutants import GROUPS, IMPOSSIBLE, MUTANTS
from zabd.cluster_sim.sweep import LEVELS, replay_command, run_seed

pytestmark = pytest.mark.sim

RECORDS = read_all()


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_mistake_is_found_by_the_seed_on_record(name: str) -> None:
    """By a check that is meant to find it."""
    hint = f"`{COMMAND} {name}` hunts it and makes the record"
    assert name in RECORDS, f"{name} has no record: {hint}"
    outcome = run_seed(RECORDS[name]["seed"], MUTANTS[name].level, name)
    again = replay_command(outcome, name)
    assert outcome.failure is not None, f"`{again}` finds nothing any more: {hint}"
    assert outcome.failure.id in MUTANTS[name].found_by, f"`{again}` is found otherwise: {hint}"
    assert outcome.failure.id == RECORDS[name]["check"], f"`{again}` is found otherwise: {hint}"


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_the_same_seed_without_the_mistake_passes_every_check(name: str) -> None:
    """What fired was the mistake, not the run (X5)."""
    assert acquit(name, RECORDS[name]["seed"]).failure is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_mistake_is_found_by_chance(name: str) -> None:
    """From seed 1 on, by a check that is meant to find it."""
    found = hunt(name)
    assert found.seed is not None, f"{name} was not found within {SEEDS_MAX} seeds"
    assert found.meant, f"{name}: {found.check} fired, {found.detail}"


def test_the_page_of_the_gallery_is_up_to_date() -> None:
    """It is generated, from the mutants and the records."""
    assert PAGE.read_text("utf-8") == page(), f"`{COMMAND}` writes it anew"


def test_most_mistakes_are_found_soon() -> None:
    """Half of them within 5 s of processor time, nine of ten within a minute, say the records."""
    times = sorted(record["cpu_s"] for record in RECORDS.values())
    assert times[len(times) // 2] <= 5
    assert times[len(times) * 9 // 10] <= 60


def test_every_mutant_and_record_has_its_place() -> None:
    """No name is used twice, no record is of nobody, no level is unknown."""
    assert sum(map(len, GROUPS.values())) == len(MUTANTS)
    assert {mutant.level for mutant in MUTANTS.values()} <= set(LEVELS)
    for group, mutants in GROUPS.items():
        assert set(read(group)) <= {mutant.name for mutant in mutants}
    assert not {each.bug for each in IMPOSSIBLE} & {mutant.bug for mutant in MUTANTS.values()}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mistake_is_gone_when_its_context_ends(name: str) -> None:
    """None of them may stay in the code of production."""
    places = [(owner, attribute) for owner, attribute, _ in MUTANTS[name].patches()]
    before = [owner.__dict__[attribute] for owner, attribute in places]
    with MUTANTS[name].planted():
        now = [owner.__dict__[attribute] for owner, attribute in places]
    assert all(ours is not theirs for ours, theirs in zip(before, now, strict=True))
    assert before == [owner.__dict__[attribute] for owner, attribute in places]
