"""Fixtures for the tests of networks."""

import pytest

pytest.register_assert_rewrite("small_networks", "edge_chips")
import small_networks  # noqa: E402


@pytest.fixture(scope="session")
def networks():
    """Small networks of each row, and batches for them: see small_networks.py."""
    return small_networks
