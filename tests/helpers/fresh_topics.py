"""Topics whose names a page or a demo fixes, on the cluster that all tests share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def fresh_topics(cluster: Any, names: Sequence[str], partitions: int) -> Iterator[None]:
    """Have these topics, and nothing of another test in them; delete them at the end."""
    delete_topics(cluster, names)
    for name in names:
        cluster.admin().create_topic(name, partitions=partitions)
    yield
    delete_topics(cluster, names)


def delete_topics(cluster: Any, names: Sequence[str]) -> None:
    """Delete those of these topics that there are."""
    admin = cluster.admin()
    for name in set(names) & set(admin.list_topics()):
        admin.delete_topic(name)
