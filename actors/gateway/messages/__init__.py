"""Kafka's requests and responses as structs and as bytes, one module per API.

The modules of the APIs and ``apis.py`` are generated from Kafka's definitions by
``tools/kafka_messages/generate.py``; do not edit them. ``primitives.py`` has the types that the
fields are made of, ``headers.py`` what stands before each message. A request's byte strings and
records are views of the buffer that it was read from; a response's records are not copied. Start
reading at ``apis.py``.
"""
