"""Frames: how messages follow each other on a connection between two processes of the cluster.

======  ====  =================================================================
offset  size  field (big-endian)
======  ====  =================================================================
0       4     length of what follows, at most ``FRAME_MAX_BYTES``
4       8     correlation id: which request a reply belongs to
12      1     request: length of the method's name; reply: its ``Outcome``
13      ...   request: method (ASCII), then the message; reply: the message
======  ====  =================================================================

The first frame of a connection is the caller's token, as the message of method ``hello``.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import logging
import socket
import struct
from typing import Final, cast

from oncelog.storage.records.batch import Buffer

_logger = logging.getLogger(__name__)

FRAME_MAX_BYTES: Final = 256 * 1_048_576
"""Far above the largest message, so that a greater length is not one of our frames."""

FRAME_STEP_BYTES: Final = 2 * 1_048_576
"""Allocated at first for a claimed length; more only as bytes arrive. A default batch fits."""

OUTGOING_PAUSE_BYTES: Final = 8 * 1_048_576
"""With more than this unread by the peer none of its requests is read, and it is sent no calls."""

OUTGOING_MAX_BYTES: Final = FRAME_MAX_BYTES + OUTGOING_PAUSE_BYTES
"""With more than this unread by the peer its connection is closed."""

HELLO: Final = "hello"

_READ_BYTES: Final = 65_536
_JOIN_MAX_BYTES: Final = 16_384
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 4_000,
}
"""In seconds, the last in milliseconds: how soon a machine that vanished silently counts as gone.

The last also counts against a process that is stopped and whose buffers are full: its connections
end, and its callers come back when it resumes.
"""

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IQB")
_BODY_HEAD = struct.Struct(">QB")


class Outcome(enum.IntEnum):
    """What the body of a reply frame is."""

    REPLY = 0
    """The reply message."""

    FAILED = 1
    """UTF-8 text: the method raised."""

    REFUSED = 2
    """UTF-8 text: there is no such method, or the request is not one."""


class FramedProtocol(asyncio.BufferedProtocol, abc.ABC):
    """Cuts the input into frames and gathers the output; subclasses implement ``received``.

    Small frames sent in one turn of the loop leave in one write. Later input
    does not overwrite the body that ``received`` was passed.

    A subclass may ``hold`` the connection: what comes in then stays where it is until ``go_on``.
    """

    def __init__(self, *, frame_max_bytes: int = FRAME_MAX_BYTES) -> None:
        self.frame_max_bytes = frame_max_bytes
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray(_READ_BYTES)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_length = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._is_paused = False
        self.is_congested = False
        """More than ``OUTGOING_PAUSE_BYTES`` are unread by the peer."""
        self.is_held = False

    @abc.abstractmethod
    def received(self, correlation_id: int, kind: int, body: memoryview) -> None:
        """Take one frame: its correlation id, byte 12, and what follows."""

    # --- what goes out --------------------------------------------------------------------

    def send(self, correlation_id: int, kind: int, *parts: Buffer) -> None:
        """Send one frame at the end of this turn; it is lost if the connection is closing.

        ``parts`` must not change any more: long ones are not copied. ``ValueError`` if the frame
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
        """What was written but not yet taken by the system, because the peer does not read."""
        if self.transport is None or self.is_closing:
            return 0
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is written to."""
        self._is_paused = self.is_congested = True
        self.check_unread()

    def check_unread(self) -> None:
        """Close the connection of a peer that leaves too much unread."""
        unread_bytes = self.unread_bytes
        if unread_bytes > OUTGOING_MAX_BYTES:
            self.close()
            _logger.warning("a connection with %d unread bytes was closed", unread_bytes)

    def resume_writing(self) -> None:
        """The peer has read most of what was written."""
        self._is_paused = self.is_congested = False
        self.drained()

    @abc.abstractmethod
    def drained(self) -> None:
        """Resume what ``is_congested`` held up."""

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
        """Remember what to write to; have the system notice a machine that is gone."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=OUTGOING_PAUSE_BYTES)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def is_closing(self) -> bool:
        """Whether the connection is lost or about to be: nothing more gets through."""
        return self.transport is None or self.transport.is_closing()

    def close(self) -> None:
        """Close the connection at once; what was not sent yet is lost."""
        if self.transport is not None:
            self.transport.abort()

    def hold(self) -> None:
        """Take no more frames and read no more; the system then slows the peer down."""
        if not self.is_held and self.transport is not None and not self.is_closing:
            self.is_held = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Take what had come before ``hold``, and then, unless held again, what comes."""
        if not self.is_held or self.transport is None or self.is_closing:
            return
        self.is_held = False
        self.buffer_updated(0)
        if not self.is_held and not self.is_closing:
            self.transport.resume_reading()

    def may_begin(self, length: int) -> bool:  # noqa: ARG002
        """Whether a frame that is longer than the read buffer may come in now, or is held."""
        return True

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go: behind those of a frame that is not whole yet."""
        large = self._large
        if large is not None:
            if self._large_filled == len(large):
                # A claimed length costs the peer nothing: grow only as bytes arrive.
                missing = self._large_length - len(large)
                large += bytes(min(missing, max(len(large), FRAME_STEP_BYTES)))
            return memoryview(large)[self._large_filled :]
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what has come into frames, as far as they are complete."""
        if self._large is not None:
            self._large_filled += nbytes
            if self._large_filled == self._large_length:
                frame, self._large = memoryview(self._large), None
                correlation_id, kind = _BODY_HEAD.unpack_from(frame)
                self.received(correlation_id, kind, frame[_BODY_HEAD.size :])
            return
        self._end += nbytes
        view = memoryview(self._buffer)
        while not self.is_held and self._end - self._start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            if not _BODY_HEAD.size <= length <= self.frame_max_bytes:
                self.close()
                return
            begin = self._start + _LENGTH.size
            if length > _READ_BYTES - _LENGTH.size:
                if self.may_begin(length):
                    self._begin_large(length, view[begin : self._end])
                    return
                self.hold()
                break
            if self._end - begin < length:
                break
            self._start = begin + length
            frame = memoryview(bytes(view[begin : begin + length]))
            correlation_id, kind = _BODY_HEAD.unpack_from(frame)
            self.received(correlation_id, kind, frame[_BODY_HEAD.size :])
            if self.is_closing:
                return
        rest = self._end - self._start
        if rest and self._start:
            view[:rest] = bytes(view[self._start : self._end])
        self._start, self._end = 0, rest

    def _begin_large(self, length: int, known: memoryview) -> None:
        """Read the rest of a frame that is longer than the buffer into a buffer of its own."""
        self._large = bytearray(min(length, max(len(known), FRAME_STEP_BYTES)))
        self._large_length = length
        self._large_filled = len(known)
        self._large[: len(known)] = known
        self._start = self._end = 0
