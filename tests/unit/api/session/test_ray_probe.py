"""What an error says of a Ray cluster that does not answer."""

from __future__ import annotations

import socket

import pytest

from oncelog.api.session import ray_cluster
from oncelog.storage.exceptions import ConnectionFailedError


def test_an_error_names_what_was_given_and_what_was_called() -> None:
    """Ray takes 127.0.0.1 for the address of its node, where nothing may listen."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        called = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConnectionFailedError) as raised:
            ray_cluster.ray_cluster_at(called, "localhost:1")
        assert f"address='localhost:1', which Ray takes for {called}, (" in str(raised.value)
        with pytest.raises(ConnectionFailedError) as raised:
            ray_cluster.ray_cluster_at(called, called)
        assert "which Ray takes for" not in str(raised.value)
