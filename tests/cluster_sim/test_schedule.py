"""The schedule keeps time, order and chance."""

from zabd.cluster_sim.schedule import Schedule


def test_things_happen_in_the_order_of_their_time() -> None:
    """Virtual time moves to each appointment, whatever the order in which they were made."""
    schedule = Schedule()
    seen: list[tuple[int, str]] = []
    for at_us, name in [(30, "c"), (10, "a"), (20, "b")]:
        schedule.at(at_us, lambda name=name: seen.append((schedule.now_us, name)))

    while schedule.step():
        pass

    assert seen == [(10, "a"), (20, "b"), (30, "c")]


def test_appointments_of_one_instant_are_kept_in_the_order_they_were_made() -> None:
    """Ties must not depend on anything but the code that made them (S2)."""
    schedule = Schedule()
    seen: list[int] = []
    for number in range(50):
        schedule.at(7, lambda number=number: seen.append(number))

    schedule.run_until(7)

    assert seen == list(range(50))


def test_an_appointment_in_the_past_is_kept_now() -> None:
    """Time never goes back (S1)."""
    schedule = Schedule()
    schedule.run_until(100)
    late = schedule.at(5, lambda: None)

    assert late.at_us == 100
    schedule.step()
    assert schedule.now_us == 100


def test_a_cancelled_appointment_is_not_kept_and_not_counted() -> None:
    """Thousands of cancelled timers must neither run nor stay in memory."""
    schedule = Schedule()
    timers = [schedule.after(1_000_000 + n, lambda: None) for n in range(5_000)]
    schedule.at(5, lambda: None)
    for timer in timers:
        timer.cancel()
        timer.cancel()

    assert len(schedule) == 1
    assert schedule.step()
    assert not schedule.step()
    assert schedule.now_us == 5
    assert schedule.kept == 1


def test_run_until_ends_at_its_time_even_when_nothing_happens() -> None:
    """Waiting for a while is possible in an empty world."""
    schedule = Schedule()
    schedule.after(50, lambda: schedule.after(100, lambda: None))

    schedule.run_until(80)

    assert schedule.now_us == 80
    assert schedule.next_us() == 150


def test_streams_are_independent_and_repeatable() -> None:
    """Drawing from one stream leaves the others as they were (S3)."""
    first, second = Schedule(9), Schedule(9)
    first.stream("workload").random()

    assert first.stream("network").random() == second.stream("network").random()
    assert first.stream("network").random() != first.stream("disks").random()
    assert Schedule(10).stream("network").random() != second.stream("network").random()
