"""Every version of every message, byte for byte as Kafka's own classes write it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsResponse,
)
from oncelog.actors.gateway.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from oncelog.actors.gateway.messages.headers import (
    RequestHeader,
    decode_request_header,
    encode_response_header,
)
from oncelog.actors.gateway.messages.join_group import JoinGroupResponse
from oncelog.actors.gateway.messages.primitives import MalformedError
from oncelog.actors.gateway.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

ROOT = Path(__file__).resolve().parents[5]
PREFIX = b"a header"


def test_a_request_of_kafka_is_read_field_by_field(request_sample):
    view = memoryview(PREFIX + request_sample.data)
    decode = request_sample.api.decode[request_sample.version]
    assert decode(view, len(PREFIX)) == request_sample.message


def test_a_response_has_the_bytes_that_kafka_writes(response_sample):
    encode = response_sample.api.encode[response_sample.version]
    assert b"".join(encode(response_sample.message)).hex() == response_sample.data.hex()


def test_every_version_has_a_sample_of_its_request_and_response(samples):
    wanted = {
        (key, version, is_request)
        for key, api in APIS.items()
        for version in api.versions
        for is_request in (True, False)
    }
    assert {(one.api.key, one.version, one.is_request) for one in samples} == wanted


def test_the_table_says_each_api_by_its_key_and_name():
    assert all(key == api.key for key, api in APIS.items())
    assert APIS[22].name == "InitProducerId"
    assert APIS[22].key is ApiKey.INIT_PRODUCER_ID
    assert (APIS[0].versions, APIS[0].flexible_from) == (range(3, 13), 9)


def check(root):
    return subprocess.run(
        [sys.executable, "tools/kafka_messages/generate.py", "--check"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_modules_are_what_the_generator_writes():
    done = check(ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_generator_names_a_module_that_was_changed(tmp_path):
    for folder in ("tools/kafka_messages", "actors/gateway/messages"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    changed = tmp_path / "actors/gateway/messages/end_txn.py"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stderr == "actors/gateway/messages/end_txn.py is not what generate.py writes\n"


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_records_of_a_produce_are_a_view_of_what_was_received(samples, version):
    sample = next(
        one
        for one in samples
        if (one.api.key, one.version, one.is_request) == (ApiKey.PRODUCE, version, True)
        and one.message.topic_data
    )
    received = bytearray(sample.data)
    request = sample.api.decode[version](memoryview(received), 0)
    records = request.topic_data[0].partition_data[0].records
    assert records.obj is received
    assert len(records) > 0


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_records_of_a_fetch_are_parts_of_their_own_and_are_not_copied(version):
    first, second = bytes(300), memoryview(b"more")
    partitions = [
        PartitionData(0, records=first),
        PartitionData(1, records=b""),
        PartitionData(2, records=None),
        PartitionData(3, records=second),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])
    parts = APIS[ApiKey.FETCH].encode[version](response)
    assert [part for part in parts if part is first or part is second] == [first, second]
    assert len(parts) == len((b"head", first, b"between", second, b"tail"))


def test_a_tagged_field_is_written_only_if_it_is_set():
    def encoded(leader):
        partition = PartitionProduceResponse(1, 6, current_leader=leader)
        response = ProduceResponse([TopicProduceResponse("t", partition_responses=[partition])])
        return b"".join(APIS[ApiKey.PRODUCE].encode[10](response))

    leader = (7).to_bytes(4, "big") + (3).to_bytes(4, "big")
    assert b"\x01\x00\x09" + leader + b"\x00" in encoded(LeaderIdAndEpoch(7, 3))
    assert leader not in encoded(None)


def test_null_is_written_as_empty_in_versions_that_know_no_null():
    response = JoinGroupResponse(protocol_name=None)
    assert APIS[ApiKey.JOIN_GROUP].encode[0](response) == APIS[ApiKey.JOIN_GROUP].encode[0](
        JoinGroupResponse(protocol_name="")
    )


@pytest.mark.parametrize("version", [2, 7])
def test_a_text_that_is_too_long_for_kafka_is_cut_between_characters(version):
    topic = CreatableTopicResult("t", error_message="ü" * 20_000)
    (encoded,) = APIS[ApiKey.CREATE_TOPICS].encode[version](CreateTopicsResponse(topics=[topic]))
    cut = "ü".encode() * 16_383
    length = (len(cut)).to_bytes(2, "big") if version < 5 else b"\xff\xff\x01"
    assert length + cut in encoded
    assert "ü".encode() * 16_384 not in encoded


def test_two_messages_do_not_share_a_list():
    first, second = ProduceResponse(), ProduceResponse()
    first.responses.append(TopicProduceResponse("t"))
    assert second.responses == []


@pytest.mark.parametrize(
    ("api_key", "version", "tags"),
    [
        (ApiKey.PRODUCE, 8, b""),
        (ApiKey.PRODUCE, 9, b"\x00"),
        (ApiKey.PRODUCE, 9, b"\x01\x05\x02ab"),
        (ApiKey.API_VERSIONS, 2, b""),
        (ApiKey.API_VERSIONS, 99, b"\x00"),
        (ApiKey.SASL_HANDSHAKE, 1, b""),
        (12_345, 1, b""),
    ],
)
@pytest.mark.parametrize("client_id", [None, "", "grün"])
def test_a_header_is_read_in_the_form_of_its_api_and_version(api_key, version, tags, client_id):
    text = b"\xff\xff" if client_id is None else client_id.encode()
    length = b"" if client_id is None else len(text).to_bytes(2, "big")
    fixed = int(api_key).to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x2a"
    data = PREFIX + fixed + length + text + tags
    header, position = decode_request_header(memoryview(data + b"body"), len(PREFIX))
    assert header == RequestHeader(api_key, version, 42, client_id)
    assert position == len(data)


@pytest.mark.parametrize("end", range(12))
def test_a_header_that_is_cut_short_is_malformed(end):
    data = b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01a\x00"
    assert decode_request_header(memoryview(data))[1] == len(data)
    with pytest.raises(MalformedError):
        decode_request_header(memoryview(data)[:end])


@pytest.mark.parametrize(
    ("api_key", "version", "tags"),
    [
        (ApiKey.PRODUCE, 8, b""),
        (ApiKey.PRODUCE, 9, b"\x00"),
        (ApiKey.API_VERSIONS, 0, b""),
        (ApiKey.API_VERSIONS, 3, b""),
    ],
)
def test_the_header_of_a_response_has_tags_unless_it_answers_api_versions(api_key, version, tags):
    header = RequestHeader(api_key, version, -2, None)
    assert encode_response_header(header) == b"\xff\xff\xff\xfe" + tags
