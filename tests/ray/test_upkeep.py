"""Settings that are altered, and compaction, on a running partition; looked at while it runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S

import oncelog
from oncelog.api.cli import main as cli
from oncelog.storage.exceptions import MessageTooLargeError

pytestmark = pytest.mark.ray

KEYS = [b"key-%d" % number for number in range(20)]


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def test_altered_settings_hold_at_once_and_compaction_leaves_the_newest_of_each_key(
    cluster: Any, topic: str, read_all: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    admin, partition = cluster.admin(), oncelog.TopicPartition(topic, 0)
    directory = Path(cluster.data_dir) / f"{topic}-0"
    with cluster.producer() as producer:
        producer.send(topic, b"x" * 6_000, key=KEYS[0], partition=0).result(DEADLINE_S)
        admin.alter_topic(
            topic,
            cleanup_policy="compact",
            segment_bytes=8_192,
            max_message_bytes=5_000,
            min_cleanable_dirty_ratio=0.01,
        )
        with pytest.raises(MessageTooLargeError):
            producer.send(topic, b"x" * 6_000, key=KEYS[0], partition=0).result(DEADLINE_S)
        for number in range(30):
            for key in KEYS:
                producer.send(topic, b"%d" % number + b"x" * 100, key=key, partition=0)
            producer.flush()
    written = log_bytes(directory)
    assert len(list(directory.glob("*.log"))) > 3
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while log_bytes(directory) > written // 4:
        assert time.monotonic() < deadline, "the log does not shrink"
        assert cli.main(["dump", "--verify", str(directory)]) == 0, capsys.readouterr().out
        pause.wait(0.2)
    newest = {record.key: record.value for record in read_all(topic)}
    assert newest == dict.fromkeys(KEYS, b"29" + b"x" * 100)
    admin.alter_topic(topic, cleanup_policy="delete")
    assert admin.delete_records({partition: 300})[partition] == 300
    with cluster.consumer() as consumer:
        assert consumer.beginning_offsets([partition])[partition] == 300
