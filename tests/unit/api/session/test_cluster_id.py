"""The id of a cluster that has to be there, as a program gives it."""

from __future__ import annotations

import pytest

from oncelog.api.session.cluster_connection import check_cluster_id
from oncelog.storage.exceptions import InvalidSettingError


@pytest.mark.parametrize("wrong", ["", "CLUSTER", "g" * 32, "a" * 31, "a" * 33])
def test_what_is_no_clusters_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSettingError, match=rf"cluster_id='{wrong}' .* 32 hexadecimal"):
        check_cluster_id(wrong)


def test_an_id_is_taken_and_none_is_needed() -> None:
    check_cluster_id("0123456789abcdef" * 2)
    check_cluster_id(None)
