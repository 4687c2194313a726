"""Ports for servers are free, and belong to one process of the tests."""

import socket
import subprocess
import sys

from tests.harness.pytest_runs import REPOSITORY
from tests.ports import ASSIGNED, BLOCK, DERIVED, HOST, free_port, free_ports

ASK = (
    "import random; random.seed(1); from tests.ports import free_port; print(free_port()); input()"
)


def test_a_port_can_be_bound_and_is_assigned_to_no_client() -> None:
    port = free_port()
    socket.create_server((HOST, port)).close()
    assert port < int(ASSIGNED.read_text().split()[0])


def test_a_port_in_use_is_passed_over() -> None:
    taken = free_port() + len(DERIVED)  # the next one
    with socket.create_server((HOST, taken)):
        assert free_port() != taken


def test_a_port_has_the_ports_that_a_broker_derives_from_it() -> None:
    ports = [port + near for port in free_ports(20) for near in DERIVED]
    assert len(set(ports)) == len(ports)
    for port in ports:
        socket.create_server((HOST, port)).close()


def test_two_processes_get_different_ports() -> None:
    """Also if both begin with the same random numbers, as tests in random order do."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ASK],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ports = set()
    for process in processes:
        assert process.stdout is not None
        ports.add(int(process.stdout.readline()) // BLOCK)
    for process in processes:
        process.communicate("\n")
    assert len(ports | {free_port() // BLOCK}) == 3
