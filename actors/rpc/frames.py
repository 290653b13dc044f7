"""Frames: the messages on a connection between two processes of the cluster.

======  ====  =================================================================
offset  size  field (big-endian)
======  ====  =================================================================
0       4     length of what follows, at most ``FRAME_MAX_BYTES``
4       8     correlation id: which request a reply belongs to
12      1     request: length of the method's name; reply: its ``Outcome``
13      ...   request: method (ASCII), then the message; reply: the message
======  ====  =================================================================

A connection begins with a nonce of the listener and the caller's ``hello`` (``handshake.py``).
"""

from __future__ import annotations

import abc
import asyncio
import enum
import logging
import socket
import struct
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from oncelog.storage.records.batch import Buffer


_logger = logging.getLogger(__name__)

FRAME_MAX_BYTES: Final = 256 * 1_048_576
"""Far above the largest message, so a greater length is not a frame of ours."""

FRAME_STEP_BYTES: Final = 2 * 1_048_576
"""First allocation for a frame that has filled the read buffer, then as much again as has arrived.

A default batch fits, so it is not copied.
"""

OUTGOING_PAUSE_BYTES: Final = 8 * 1_048_576
"""Unread bytes at the peer above which its requests are not read, and no calls are sent."""

OUTGOING_MAX_BYTES: Final = FRAME_MAX_BYTES + OUTGOING_PAUSE_BYTES
"""Unread bytes at the peer above which its connection is closed."""

HELLO: Final = "hello"
HELLO_ID: Final = 0
"""The correlation id of the frames that begin a connection."""

_READ_BYTES: Final = 65_536
_JOIN_MAX_BYTES: Final = 16_384
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 4_000,
}
"""Keep-alive options in seconds, the last in ms: when a silently vanished machine counts as gone.

The last also applies to a stopped process whose buffers are full: its connections end, and its
callers reconnect when it resumes.
"""

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IQB")
_BODY_HEAD = struct.Struct(">QB")


class Outcome(enum.IntEnum):
    """The kind of a reply frame's body."""

    REPLY = 0
    """The reply message."""

    FAILED = 1
    """UTF-8 text: the method raised."""

    REFUSED = 2
    """UTF-8 text: there is no such method, or the request is not one."""

    CHALLENGE = 3
    """A nonce, the first frame of a connection, which the caller's ``hello`` answers."""

    LIMITED = 4
    """UTF-8 text: the caller's principal may have no more connections to this actor."""


class FramedProtocol(asyncio.BufferedProtocol, abc.ABC):
    """Splits input into frames and gathers output; subclasses implement ``received``.

    Small frames sent in one turn of the loop are written together. Later input does not overwrite a
    body passed to ``received``.

    A subclass may ``hold`` the connection: further input is not processed until ``go_on``.
    """

    def __init__(self, *, frame_max_bytes: int = FRAME_MAX_BYTES) -> None:
        self.frame_max_bytes = frame_max_bytes
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        # Small until the peer may send longer frames: a stranger costs little memory.
        self._buffer = bytearray(min(_READ_BYTES, _LENGTH.size + frame_max_bytes))
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_length = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._is_paused = False
        self.is_congested = False
        """Whether more than ``OUTGOING_PAUSE_BYTES`` are unread by the peer."""
        self.is_held = False

    @abc.abstractmethod
    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """Take one frame: its correlation id, byte 12, and what follows."""

    # --- what goes out --------------------------------------------------------------------

    def send(self, correlation_id: int, kind: int, *parts: Buffer) -> None:
        """Send one frame at the end of this turn; it is lost if the connection is closing.

        ``parts`` must not change afterwards: long ones are not copied. ``ValueError`` if the frame
        is longer than ``FRAME_MAX_BYTES``.
        """
        length = _BODY_HEAD.size + sum(map(len, parts))
        if length > FRAME_MAX_BYTES:
            raise ValueError(f"a message of {length} bytes: at most {FRAME_MAX_BYTES} can be sent")
        head = _HEAD.pack(length, correlation_id, kind)
        if not self._outgoing:
            self.loop.call_soon(self._flush)
        self._outgoing.append(head)
        self._outgoing.extend(parts)
        self._outgoing_bytes += length
        if self._outgoing_bytes > OUTGOING_PAUSE_BYTES:
            self.is_congested = True

    @property
    def unread_bytes(self) -> int:
        """Bytes written but not accepted by the system yet, because the peer does not read."""
        if self.transport is None or self.is_closing:
            return 0
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """asyncio: the peer reads too slowly."""
        self._is_paused = self.is_congested = True
        self.check_unread()

    def check_unread(self) -> None:
        """Close the connection if the peer leaves too much unread."""
        unread_bytes = self.unread_bytes
        if unread_bytes > OUTGOING_MAX_BYTES:
            self.close()
            _logger.warning(
                "a connection with %d unread bytes was closed — see why the program at its other "
                "end does not read: it is blocked, or overloaded",
                unread_bytes,
            )

    def resume_writing(self) -> None:
        """asyncio: the peer has read most of what was written."""
        self._is_paused = self.is_congested = False
        self.drained()

    @abc.abstractmethod
    def drained(self) -> None:
        """Resume what ``is_congested`` paused."""

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self._outgoing_bytes = 0
        transport = self.transport
        if transport is None or self.is_closing:
            return
        small: list[Buffer] = []
        for part in outgoing:
            if len(part) <= _JOIN_MAX_BYTES:
                small.append(part)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(part)
        if small:
            transport.write(b"".join(small))
        if self._is_paused:
            self.check_unread()
        elif self.is_congested:
            self.is_congested = False
            self.drained()

    # --- what comes in --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; enable keep-alive, to detect a machine that is gone."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=OUTGOING_PAUSE_BYTES)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Drop the transport.

        A secured one refers to this, and would hold its buffers until garbage is collected.
        """
        self.transport = None

    @property
    def is_closing(self) -> bool:
        """Whether the connection is lost or closing."""
        return self.transport is None or self.transport.is_closing()

    def close(self) -> None:
        """Close the connection at once; unsent data is lost."""
        if self.transport is not None:
            self.transport.abort()

    def close_when_sent(self) -> None:
        """Close the connection once what was sent is written; nothing more is read."""
        self._flush()
        if self.transport is not None:
            self.transport.close()

    def hold(self) -> None:
        """Stop processing and reading; TCP back-pressure then slows the peer down."""
        if not self.is_held and self.transport is not None and not self.is_closing:
            self.is_held = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Process what arrived before ``hold``, then, unless held again, continue reading."""
        if not self.is_held or self.transport is None or self.is_closing:
            return
        self.is_held = False
        self.buffer_updated(0)
        if not self.is_held and not self.is_closing:
            self.transport.resume_reading()

    def grant(self, least_bytes: int, most_bytes: int) -> int:  # noqa: ARG002
        """How many bytes the buffer of a long frame may have now; 0: none, so it is held."""
        return most_bytes

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The buffer for the next bytes: after those of an incomplete frame."""
        large = self._large
        if large is not None:
            if self._large_filled == len(large):
                # Python 3.10's TLS hands over what it has decrypted, also once reading is paused.
                self._large = large = _longer(large, len(large) + _READ_BYTES)
            return memoryview(large)[self._large_filled : self._large_length]
        # A new one: views of the old one may be in use.
        if len(self._buffer) < _READ_BYTES and self.frame_max_bytes > len(self._buffer):
            self._buffer = _longer(self._buffer, _READ_BYTES)
        elif self._end == len(self._buffer):
            # Held: see above.
            self._buffer = _longer(self._buffer, self._end + _READ_BYTES)
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the complete frames received so far."""
        if self._large is not None:
            self._large_filled += nbytes
            self._go_on_with_large(self._large)
            return
        self._end += nbytes
        view = memoryview(self._buffer)
        while not self.is_held and self._end - self._start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            if not _BODY_HEAD.size <= length <= self.frame_max_bytes:
                self.close()
                return
            begin = self._start + _LENGTH.size
            end = begin + length
            if self._end < end:
                # A claimed length costs the peer nothing: only what has arrived is given room.
                if self._end - self._start >= _READ_BYTES:
                    self._begin_large(length, view[begin : self._end])
                break
            self._start = end
            frame = memoryview(bytes(view[begin:end]))
            correlation_id, kind = _BODY_HEAD.unpack_from(frame)
            self.received(correlation_id, kind, frame[_BODY_HEAD.size :])
            if self.is_closing:
                return
        rest = self._end - self._start
        if rest and self._start:
            view[:rest] = bytes(view[self._start : self._end])
        self._start, self._end = 0, rest
        if not rest and len(self._buffer) > _READ_BYTES:
            self._buffer = bytearray(_READ_BYTES)

    def _begin_large(self, length: int, known: memoryview) -> None:
        """Read the rest of a frame longer than the read buffer into its own, if it has room."""
        size = self._granted(len(known), length)
        if size:
            self._large = _longer(known, size)
            self._large_length, self._large_filled = length, len(known)
            self._start = self._end = 0

    def _go_on_with_large(self, large: bytearray) -> None:
        """Take a long frame that is whole, or have its buffer grow once that is full."""
        filled, length = self._large_filled, self._large_length
        if filled == length:
            frame, self._large = memoryview(large)[:length], None
            correlation_id, kind = _BODY_HEAD.unpack_from(frame)
            self.received(correlation_id, kind, frame[_BODY_HEAD.size :])
        elif filled == len(large):
            size = self._granted(filled, length)
            if size:
                self._large = _longer(large, size)

    def _granted(self, arrived_bytes: int, length: int) -> int:
        """How long the buffer of a long frame may be now; 0: it is held."""
        least = min(length, 2 * arrived_bytes)
        size = self.grant(least, max(least, min(length, FRAME_STEP_BYTES)))
        if not size:
            self.hold()
        return size


def _longer(data: bytearray | memoryview, size: int) -> bytearray:
    longer = bytearray(size)
    longer[: len(data)] = data
    return longer
