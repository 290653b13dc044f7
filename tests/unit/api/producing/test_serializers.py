"""Keys and values of an application become bytes, and the bytes objects again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pydantic
import pytest
from deadlines import DEADLINE_S

from oncelog.api.batching.interceptors import ProducerInterceptor
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.api.producing.producer import Producer
from oncelog.api.serializing import SerializationContext, Serializers
from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.exceptions import InvalidSettingError, SerializationError


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., Producer]]:
    """Makes producers on one loop thread."""
    loop_thread = LoopThread()

    def producer(transactional_id: str | None = None, **options: Any) -> Producer:
        settings = ProducerSettings(transactional_id=transactional_id, **options)
        return Producer(cluster.router(), loop_thread, settings, random=Random(5))

    yield producer
    loop_thread.close()


class Order(pydantic.BaseModel):
    number: int


class Parcel(msgspec.Struct):
    weight: int


def order_to_bytes(order: Order, context: Any) -> bytes:
    return order.model_dump_json().encode()


TABLE = pa.table({"a": [1, 2]})


@pytest.mark.parametrize(
    ("to_bytes", "from_bytes", "value"),
    [
        ("bytes", "bytes", b"v"),
        ("str", "str", "é"),
        ("json", "json", {"a": [1, None, "b"]}),
        ("msgpack", "msgpack", {"a": [1, b"b"]}),
        ("arrow", "arrow", TABLE),
        (order_to_bytes, lambda data, _: Order.model_validate_json(data), Order(number=7)),
        ("msgpack", lambda data, _: msgspec.msgpack.decode(data, type=Parcel), Parcel(weight=3)),
    ],
)
def test_what_is_written_is_read_back(to_bytes: Any, from_bytes: Any, value: Any) -> None:
    writing = Serializers(to_bytes, to_bytes)
    reading = Serializers(from_bytes, from_bytes, is_reading=True)
    written = writing.apply("t", value, value, ())
    assert all(isinstance(one, bytes) for one in written)
    assert reading.apply("t", *written, ()) == (value, value)
    assert writing.apply("t", None, None, ()) == (None, None)


def test_a_function_is_told_topic_field_and_headers() -> None:
    told: list[Any] = []

    def tell(value: Any, context: Any) -> bytes:
        told.append((value, context))
        return b"x"

    headers = [("h", b"1")]
    assert Serializers(tell, tell).apply("t", 1, 2, headers) == (b"x", b"x")
    assert told == [
        (2, SerializationContext(topic="t", field="key", headers=headers)),
        (1, SerializationContext(topic="t", field="value", headers=headers)),
    ]


@pytest.mark.parametrize("kind", [ProducerSettings, ConsumerSettings])
def test_an_unknown_serializer_is_refused_by_name(kind: Any) -> None:
    name = "value_serializer" if kind is ProducerSettings else "value_deserializer"
    with pytest.raises(InvalidSettingError, match=rf"{name}='xml' .* 'msgpack'"):
        kind.from_options({name: "xml"})


def test_objects_are_sent_as_bytes_and_keys_place_them(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    leaders = cluster.create("t", 3)
    seen: list[Any] = []

    class Watch(ProducerInterceptor):
        def on_send(self, record: Any) -> Any:
            seen.append((record.key, record.value))
            return record

    for interceptors in ((), (Watch(),)):
        options = {"key_serializer": "str", "value_serializer": "json"}
        with make(interceptors=interceptors, **options) as producer:
            future = producer.send("t", {"a": 1}, "k", on_delivery=lambda *_: None)
            placed = future.result(DEADLINE_S)
            assert producer.send("t", None, "k").result(DEADLINE_S).partition == placed.partition
    assert leaders[placed.partition].values() == [b'{"a":1}', None] * 2
    assert seen == [("k", {"a": 1}), ("k", None)]


@pytest.mark.parametrize("interceptors", [(), (ProducerInterceptor(),)])
def test_a_serializer_that_raises_sends_nothing_and_the_transaction_lives(
    cluster: Any, make: Callable[..., Producer], interceptors: Any
) -> None:
    (leader,) = cluster.create("t")
    options = {"key_serializer": "str", "value_serializer": "json"}
    with make("loader", interceptors=interceptors, **options) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", [1])
            wrong = "the value of a record of topic 't' cannot be serialized: "
            with pytest.raises(SerializationError, match=wrong) as raised:
                producer.send("t", object())
            assert isinstance(raised.value.__cause__, TypeError)
            with pytest.raises(SerializationError, match="the key of a record of topic 't'"):
                producer.send("t", [2], 5)
    assert leader.committed_values() == [b"[1]"]


def test_the_asynchronous_producer_serializes_too(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        async with cluster.producer("loader", value_serializer="msgpack") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", {"a": 1})
                with pytest.raises(SerializationError):
                    await producer.send("t", object())

    run(story())
    assert leader.committed_values() == [msgspec.msgpack.encode({"a": 1})]


def test_what_a_serializer_returns_must_be_bytes(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    cluster.create("t")
    with (
        make(value_serializer=lambda value, _: value) as producer,
        pytest.raises(TypeError, match="value must be bytes or None, not dict"),
    ):
        producer.send("t", {})


# --- a schema registry ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["avro", "json_schema"])
def test_the_serializers_of_a_schema_registry_are_taken_as_they_are(
    cluster: Any, make: Callable[..., Producer], kind: str
) -> None:
    registry = pytest.importorskip("confluent_kafka.schema_registry")
    module = pytest.importorskip(f"confluent_kafka.schema_registry.{kind}")
    client = registry.SchemaRegistryClient.new_client({"url": "mock://orders"})
    if kind == "avro":
        schema = '{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}'
        write = module.AvroSerializer(client, schema)
        read = module.AvroDeserializer(client, schema)
    else:
        schema = '{"title": "Order", "type": "object", "properties": {"n": {"type": "integer"}}}'
        write = module.JSONSerializer(schema, client)
        read = module.JSONDeserializer(schema)
    (leader,) = cluster.create("t")
    with make(value_serializer=write) as producer:
        producer.send("t", {"n": 7}).result(DEADLINE_S)
        with pytest.raises(SerializationError, match="the value of a record of topic 't'"):
            producer.send("t", {"n": "seven"})
    (data,) = leader.values()
    assert data[0] == 0  # its magic byte
    assert Serializers(None, read, is_reading=True).apply("t", data, None, ()) == ({"n": 7}, None)
    assert client.get_latest_version("t-value").subject == "t-value"


def test_protobuf_messages_of_a_schema_registry(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    registry = pytest.importorskip("confluent_kafka.schema_registry")
    module = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    message = pytest.importorskip("google.protobuf.wrappers_pb2").StringValue
    client = registry.SchemaRegistryClient.new_client({"url": "mock://names"})
    write = module.ProtobufSerializer(message, client, {"use.deprecated.format": False})
    read = module.ProtobufDeserializer(message, {"use.deprecated.format": False})
    (leader,) = cluster.create("t")
    with make(value_serializer=write) as producer:
        producer.send("t", message(value="UA")).result(DEADLINE_S)
    (data,) = leader.values()
    value, _ = Serializers(None, read, is_reading=True).apply("t", data, None, ())
    assert value.value == "UA"
