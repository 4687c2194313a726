"""Ports for servers are free, and belong to one process of the tests."""

import socket
import subprocess
import sys

from tests.ports import ASSIGNED, BLOCK, HOST, free_port, free_ports
from tests.pytest_runs import REPOSITORY

ASK = (
    "import random; random.seed(1); from tests.ports import free_port; print(free_port()); input()"
)


def test_a_port_can_be_bound_and_is_assigned_to_no_client() -> None:
    port = free_port()
    socket.create_server((HOST, port)).close()
    assert port < int(ASSIGNED.read_text().split()[0])


def test_a_port_in_use_is_passed_over() -> None:
    port = free_port(1)
    with socket.create_server((HOST, port + 1)):
        assert free_port() != port + 1


def test_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_the_ports_nearby_are_free_too() -> None:
    port = free_port(-2, 1)
    for number in (port - 2, port, port + 1):
        socket.create_server((HOST, number)).close()


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
