"""Simulated threads do not outlive the test that uses them."""

import threading

from tests.crash.threads import World, real_threads_afterwards

from firetrail.store.dispatch import dispatcher


def test_a_simulation_that_was_not_ended_leaves_real_threads() -> None:
    with real_threads_afterwards():
        simulation = World(1).replaces_threading()
        simulation.__enter__()
        assert vars(dispatcher)["threading"] is not threading
    assert vars(dispatcher)["threading"] is threading
