"""A program whose transactions are committed together with another system: in both, or in neither.

The other system is a database that commits rows and the name of the prepared transaction at once.
Each life of the program first ends what the one before it prepared, as the database says. A write
that the database has committed must be seen in the log, and no other may be: so the checkers of
all writes are its checkers too.
"""

from __future__ import annotations

from random import Random

from sim_history import Outcome, Write
from sim_stage import CALLS_AGAIN_MAX, Life, Player, Stage

from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.transacting.producer_transaction import PreparedTxnState
from oncelog.storage.exceptions import OncelogError

RECORDS_MAX = 4
TAKE_OVERS_MAX = 100
"""How often the last one is tried, after all faults."""


class Database:
    """What the other system has committed: the writes, and what the last of them is called."""

    def __init__(self) -> None:
        self.prepared: PreparedTxnState | None = None
        self.unended: list[Write] = []
        """Those of which nobody knows yet that the log has committed them."""

    def commit(self, write: Write, prepared: PreparedTxnState) -> None:
        """Rows and name in one step, which is the decision."""
        self.unended.append(write)
        self.prepared = prepared


def preparer(transactional_id: str) -> Life:
    """Writes to both systems, and leaves its producer at any step."""

    async def life(player: Player) -> None:
        database = player.stage.databases.setdefault(transactional_id, Database())
        while player.is_on:
            producer, owner = _producer(player, transactional_id), player.new_owner()
            if await _take_over(player, producer, owner, transactional_id, database):
                while player.is_on and await _write(player, producer, owner, database):
                    await player.pause()
            if player.random.random() < 0.5:
                await producer.close(timeout_ms=2_000)
            await player.pause(player.stage.plan.transaction_timeout_ms)

    return life


async def end_prepared(player: Player) -> None:
    """After the faults: a last successor of each program ends what is prepared."""
    for transactional_id, database in sorted(player.stage.databases.items()):
        for _ in range(TAKE_OVERS_MAX):
            producer, owner = _producer(player, transactional_id), player.new_owner()
            is_over = await _take_over(player, producer, owner, transactional_id, database)
            await producer.close(timeout_ms=2_000)
            if is_over:
                break
        else:
            player.history.shut_out.append(f"{transactional_id}: nobody can take over")


def last_preparer(stage: Stage) -> Player:
    """Who does that."""
    return Player(stage, stage.world.client("last-preparer"), Random("last preparer"))


def _producer(player: Player, transactional_id: str) -> AsyncProducer:
    return player.client.producer(
        transactional_id=transactional_id,
        transaction_timeout_ms=player.stage.plan.transaction_timeout_ms,
        **player.producer_settings(),
    )


async def _take_over(
    player: Player, producer: AsyncProducer, owner: str, transactional_id: str, database: Database
) -> bool:
    """Take the id and end what is prepared; whether the producer can go on."""
    if not await player.claim(producer, owner, transactional_id, keep_prepared=True):
        return False
    player.stage.counts["prepared, then taken over"] += producer.prepared_transaction is not None
    return await _complete(player, producer, database)


async def _complete(player: Player, producer: AsyncProducer, database: Database) -> bool:
    """End what is prepared as the database says; then its writes are certain."""
    for _ in range(CALLS_AGAIN_MAX):
        try:
            await producer.complete_transaction(database.prepared)
        except OncelogError as error:
            if error.retriable:
                continue
            return False
        for write in database.unended:
            player.ended(write, Outcome.OK)
        database.unended.clear()
        return True
    return False


async def _write(player: Player, producer: AsyncProducer, owner: str, database: Database) -> bool:
    """One write to both systems; whether the producer can go on."""
    chance = player.random
    write = player.history.begin(owner, producer.settings.transactional_id)
    leaves_at = chance.choice(("", "", "", "prepare", "database", "completion"))
    try:
        await producer.begin_transaction()
        for number in range(chance.randint(1, RECORDS_MAX)):
            topic_partition = chance.choice(player.stage.targets())
            value = f"{owner}/{write.name.removeprefix('write ')}.{number}"
            await player.send(producer, player.history.send(write, topic_partition, value))
        if leaves_at == "prepare":
            return False
        prepared = await producer.prepare_transaction()
    except OncelogError:
        return False
    if leaves_at == "database":
        return False
    await player.pause(2 * player.stage.plan.transaction_timeout_ms)
    player.history.start_commit(write)
    database.commit(write, prepared)
    player.stage.counts["writes in two systems"] += 1
    return leaves_at != "completion" and await _complete(player, producer, database)
