"""Tests that two ways to the same thing follow one rule.

Each module feeds the same table of inputs to every way: remoting, gRPC, embedded store and client;
pull, pop, peek and notification; files and brokers; broker.conf, arguments and options; master and
slave; a setting before and after it is changed. A way that is added to the product is added here.
Compiled and uncompiled kernels are compared in ``tests/format/kernels/test_both_ways.py``.
"""

from tests.broker.conftest import talk

__all__ = ["talk"]
