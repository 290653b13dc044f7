"""The places that the workers of a job have in their group.

Workers are static members: a restarted one has its partitions back at once, and for the rest of its
session nobody else gets them. So a job that ends gives its places up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.processing.messages import identity_of
from oncelog.storage.exceptions import GroupIdNotFoundError, OncelogError, UnknownMemberIdError

LEAVE_TIMEOUT_MS: Final = 5_000
"""How long the coordinator of the group may take to put workers out, when a job starts or stops."""

_log = logging.getLogger(__name__)


async def leave_former_places(admin: AsyncAdmin, group_id: str, *, worker_count: int) -> None:
    """Give up the places of earlier jobs that a job of ``worker_count`` has no worker for.

    Those were killed, or ended with their cluster.
    """
    try:
        group = await admin.describe_group(group_id)
    except GroupIdNotFoundError:
        return
    except OncelogError as error:
        _log.warning("job %s: which workers it had before is not known: %s", group_id, error)
        return
    prefix = identity_of(group_id, 0).removesuffix("0")
    names = (member.group_instance_id or "" for member in group.members)
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    former = [int(number) for number in numbers if number.isdecimal()]
    await give_up_places(admin, group_id, [index for index in former if index >= worker_count])


async def give_up_places(admin: AsyncAdmin, group_id: str, worker_indexes: Iterable[int]) -> None:
    """Put these workers out of the group, those that are in it."""
    places = [identity_of(group_id, index) for index in worker_indexes]
    try:
        await admin.remove_members_from_group(group_id, group_instance_ids=places)
    except UnknownMemberIdError as error:
        _log.debug("job %s: %s", group_id, error)
    except OncelogError as error:
        _log.warning(
            "job %s: the group keeps the places of %s until their sessions end: %s",
            group_id,
            ", ".join(places),
            error,
        )
