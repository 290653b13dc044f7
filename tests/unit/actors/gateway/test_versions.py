"""What clients are told that is served, in the version in which they ask."""

from __future__ import annotations

import pytest
from kafka.protocol.metadata import ApiVersionsResponse

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.versions import (
    NOT_SERVED,
    UNSUPPORTED_VERSION,
    is_readable,
    offered,
    versions_told,
)

ALL = offered(tuple(ApiKey))


def told(version: int) -> ApiVersionsResponse:
    """As kafka-python reads it."""
    parts = APIS[ApiKey.API_VERSIONS].encode[version](versions_told(ALL, version))
    return ApiVersionsResponse.decode(b"".join(parts), version=version)


@pytest.mark.parametrize("version", range(5))
def test_every_version_tells_all_that_is_offered(version):
    answer = told(version)
    assert answer.error_code == 0
    assert {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys} == {
        int(key): (versions.start, versions.stop - 1) for key, versions in ALL.items()
    }


def test_what_has_no_handler_is_not_offered():
    assert offered([ApiKey.FETCH]).keys() == {ApiKey.FETCH}
    assert offered([]) == {}


def test_librdkafka_is_shown_the_lowest_version_of_produce_that_it_looks_for():
    assert ALL[ApiKey.PRODUCE] == range(13)
    assert not is_readable(ALL, ApiKey.PRODUCE, 2), "it has no codec"
    assert is_readable(ALL, ApiKey.PRODUCE, 3)


def test_what_only_brokers_send_is_not_offered():
    assert ALL[ApiKey.ADD_PARTITIONS_TO_TXN] == range(4)
    assert not is_readable(ALL, ApiKey.ADD_PARTITIONS_TO_TXN, 4)


@pytest.mark.parametrize(("key", "version"), [(68, 0), (ApiKey.FETCH, 99), (ApiKey.FETCH, -1)])
def test_what_is_not_offered_cannot_be_read(key, version):
    assert not is_readable(ALL, key, version)


def test_a_version_that_is_too_new_is_told_which_to_ask_in():
    answer = versions_told(ALL, 5)
    assert answer.error_code == UNSUPPORTED_VERSION
    assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [
        (ApiKey.API_VERSIONS, 0, 4)
    ]


def test_transactions_of_version_2_are_finalized_for_clients_that_know_of_features():
    for version in (3, 4):
        answer = told(version)
        assert answer.finalized_features_epoch == 0
        (feature,) = answer.finalized_features
        assert (feature.name, feature.min_version_level, feature.max_version_level) == (
            "transaction.version",
            2,
            2,
        )
    assert told(2).finalized_features_epoch in (-1, None)


def test_a_feature_that_begins_at_0_is_shown_only_to_those_who_can_read_it():
    (feature,) = told(4).supported_features
    assert (feature.name, feature.min_version, feature.max_version) == ("transaction.version", 0, 2)
    assert not told(3).supported_features


def test_each_api_that_is_missing_has_its_reason_and_no_other():
    assert not {api.name for api in APIS.values()} & NOT_SERVED.keys()
    assert all(NOT_SERVED.values())
