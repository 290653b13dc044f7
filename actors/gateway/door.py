"""Answers the requests of Kafka's clients: the codec, a handler, and what they may take.

A connection (``listener.py``) has read a request's header and knows whose it is. Here its bytes
become a struct, the handler of its API answers it in the client's name (``calls.py``), and the
answer becomes bytes. What a handler cannot answer ends the connection: the client connects again
and asks again.

``handlers_of`` has all handlers of a gateway, ``versions.py`` what is offered of them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias

from oncelog.actors.config import ClusterConfig
from oncelog.actors.gateway.administration import acls, brokers, configs, topics
from oncelog.actors.gateway.administration.transactions import HANDLERS as DESCRIBES_TRANSACTIONS
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.errors import ReconnectError, UnansweredError
from oncelog.actors.gateway.groups import membership, offsets
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.headers import RequestHeader, encode_response_header
from oncelog.actors.gateway.messages.primitives import Buffer, MalformedError
from oncelog.actors.gateway.metadata import MetadataHandlers
from oncelog.actors.gateway.records.handlers import RecordHandlers
from oncelog.actors.gateway.sizes import check_listed, check_produce
from oncelog.actors.gateway.transactions.enrolments import Enrolments
from oncelog.actors.gateway.transactions.requests import Transactions
from oncelog.actors.gateway.versions import is_readable, offered
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import NO_LIMITS
from oncelog.actors.rpc.call_meter import NO_REPORTS, OTHER, CallMeter, CallReports
from oncelog.actors.rpc.dispatch import LogBudget
from oncelog.actors.rpc.limits import OnThrottle, PrincipalLimits
from oncelog.storage.errors import ErrorCode, InvariantViolation

_logger = logging.getLogger(__name__)

Handler: TypeAlias = "Callable[[Call, Any], Awaitable[Any]]"
"""Answers requests of one API; ``None``: with nothing."""

KAFKA: Final = "kafka"
"""The side of calls that are Kafka's, in metrics; their method is an API and its version."""

OF_CONNECTIONS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""APIs about the connection itself, which answers them."""

_LENGTH = Struct(">i")


class ConnectionEndError(Exception):
    """A request has no answer, and the log says why: its connection is to be closed."""


class ApiMeter(CallMeter):
    """Counts requests by API and version; bounded by those that are offered."""

    def __init__(self, reports: CallReports) -> None:
        super().__init__(KAFKA, reports)

    def _begin_method(self, method: str) -> Any:
        calls = super()._begin_method(method)
        # No request of ours has such a name, so it was begun as one that is not known.
        self._by_method[method] = self._by_method.pop(OTHER)
        return calls


class KafkaDoor:
    """Answers for one gateway with these handlers.

    ``on_bug`` gets a broken invariant, and ends the process.
    """

    def __init__(
        self,
        cluster: Cluster,
        handlers: Mapping[ApiKey, Handler],
        *,
        on_bug: Callable[[InvariantViolation], None],
        reports: CallReports = NO_REPORTS,
    ) -> None:
        self.cluster = cluster
        self._handlers = handlers
        self._on_bug = on_bug
        self.versions = offered({*handlers, *OF_CONNECTIONS})
        self.meter = ApiMeter(reports)
        self._limits = PrincipalLimits(reports)
        self.warnings = LogBudget(_logger)
        self._names = {
            (int(key), version): f"{APIS[key].name}/{version}"
            for key, versions in self.versions.items()
            for version in versions
        }

    def is_served(self, header: RequestHeader) -> bool:
        """Whether a request is offered and can be read."""
        return is_readable(self.versions, header.api_key, header.api_version)

    def owed_ms(self, principal: Principal) -> int:
        """For how long a new connection of ``principal`` is not read."""
        return self._limits.owed_ms(principal, self.cluster.door.limits(principal))

    async def answer(
        self,
        client: Client,
        header: RequestHeader,
        frame: memoryview,
        position: int,
        on_throttle: OnThrottle,
    ) -> list[Buffer]:
        """The frame that answers a request, which begins at ``position``; empty: there is none.

        ``on_throttle`` is called first if the client is over its limits. ``ConnectionEndError`` if
        the connection cannot go on.
        """
        metered = self.meter.begin(self._names[header.api_key, header.api_version], len(frame))
        throttle_ms = self._spend(client.principal, len(frame), on_throttle)
        try:
            response = await self._handled(client, header, frame, position)
            if response is None:
                return []
            if throttle_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = max(response.throttle_time_ms, throttle_ms)
            parts = self._framed(header, response)
            metered.reply_bytes = sum(map(len, parts))
            return parts
        finally:
            # What is inside of an answer, of several partitions, is no error of it as a whole.
            self.meter.end(metered, ErrorCode.NONE)

    async def _handled(
        self, client: Client, header: RequestHeader, frame: memoryview, position: int
    ) -> Any:
        key, version = header.api_key, header.api_version
        name = self._names[key, version]
        try:
            if key == ApiKey.PRODUCE:
                check_produce(version, frame, position)
            request = APIS[key].decode[version](frame, position)
            check_listed(frame, request)
        except MalformedError as error:
            self.warnings.warn(
                "a request %s of client %r at %s cannot be read: %s — see what sends it: it is no "
                "client of Kafka, or speaks another protocol",
                *(name, header.client_id, client.host, error),
            )
            raise ConnectionEndError from error
        call = Call(
            cluster=self.cluster, client=client, version=version, client_id=header.client_id
        )
        try:
            return await self._handlers[APIS[key].key](call, request)
        except ReconnectError as error:
            _logger.info(
                "a connection of client %r at %s is closed, and its %s comes again on another: %s",
                *(header.client_id, client.host, name, error),
            )
            raise ConnectionEndError from error
        except UnansweredError as error:
            self.warnings.warn(
                "a request %s of client %r at %s has no answer: %s — see `oncelog status`: the "
                "client connects again by itself",
                *(name, header.client_id, client.host, error),
            )
            raise ConnectionEndError from error
        except InvariantViolation as bug:
            self._on_bug(bug)
            raise
        except Exception as error:
            raise self._bug(name) from error

    def _bug(self, name: str) -> ConnectionEndError:
        _logger.exception("%s raised — this is a bug: report it with this log", name)
        return ConnectionEndError(name)

    def _framed(self, header: RequestHeader, response: Any) -> list[Buffer]:
        try:
            return self.framed(header, response)
        except Exception as error:
            # A value of it does not fit its field.
            raise self._bug(self._names[header.api_key, header.api_version]) from error

    def _spend(self, principal: Principal, size_bytes: int, on_throttle: OnThrottle) -> int:
        """Count a request, and have the connection held if it is over a limit; how long, in ms."""
        limits = self.cluster.door.limits(principal)
        if limits is NO_LIMITS:
            return 0
        told: list[int] = []
        self._limits.spend(principal, limits, size_bytes, told.append)
        for throttle_ms in told:
            on_throttle(throttle_ms)
        return max(told, default=0)

    def framed(self, header: RequestHeader, response: Any) -> list[Buffer]:
        """A response as a frame, in parts; long ones are not copied."""
        version = header.api_version if self.is_served(header) else 0
        parts = APIS[header.api_key].encode[version](response)
        head = encode_response_header(header)
        return [_LENGTH.pack(len(head) + sum(map(len, parts))) + head, *parts]


# --- handlers ---------------------------------------------------------------------------------


def handlers_of(
    cluster: Cluster,
    config: ClusterConfig,
    own_address: Callable[[], tuple[str, int]],
    on_bug: Callable[[BaseException], None],
) -> dict[ApiKey, Handler]:
    """All handlers of one gateway, which listens at ``own_address``."""
    enrolments = Enrolments()
    transactions = Transactions(enrolments)
    records = RecordHandlers(
        cluster,
        enrolments=enrolments,
        init_transactional=transactions.init_producer_id,
        on_bug=on_bug,
    )
    return {
        **MetadataHandlers(cluster, config, own_address, on_bug).handlers,
        **records.handlers,
        **transactions.handlers,
        **membership.HANDLERS,
        **offsets.HANDLERS,
        **topics.HANDLERS,
        **configs.HANDLERS,
        **brokers.HANDLERS,
        **acls.HANDLERS,
        **DESCRIBES_TRANSACTIONS,
    }
