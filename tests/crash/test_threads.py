"""Simulated threads do not outlive the test that uses them."""

import threading

from tests.crash.world.threads import World, real_threads_afterwards

from firetrail.broker import background


def test_a_simulation_that_was_not_ended_leaves_real_threads() -> None:
    with real_threads_afterwards():
        simulation = World(1).replaces_threading()
        simulation.__enter__()
        assert vars(background)["threading"] is not threading
    assert vars(background)["threading"] is threading
