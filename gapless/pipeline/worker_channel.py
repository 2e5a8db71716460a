"""Messages between the caller and a worker: one socket pair each, one system call per message.

A message is a header and a body. Bodies are pickled by the one and unpickled by the other of two
processes of the same program; the sockets have no name that anybody else could connect to. A body
that is too large for a socket travels in memory of its own, whose descriptor is sent. Captured
steps go another way, through memory that all share: csrc/torch/step_exchange.h.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from mmap import PROT_READ, mmap
from typing import Any

import torch

HEADER = struct.Struct("=IIqq")  # kind, rank, step, CLOCK_MONOTONIC in ns
_DESCRIPTOR = struct.Struct("=i")
_SPACE_FOR_ONE = socket.CMSG_LEN(_DESCRIPTOR.size)
_IN_MEMORY = 1 << 16  # set in the kind: the body is the size of the memory whose descriptor came
_SOCKET_BYTES = 128 << 10  # for all the bodies that are on their way in one direction
_LARGEST_INLINE = 32 << 10
MOST_ON_THEIR_WAY = 64


class Kind(IntEnum):
    """What a message is. Some are known to csrc/torch/step_exchange.h, too."""

    CLOSED = 0  # the other end is gone
    STEP = 1
    RESULT = 2
    SKIPPED = 3  # the device did not run the step to its end
    READY = 4
    CALL = 5
    RETURNED = 6
    ERROR = 7
    STOP = 8
    FILE = 9


@dataclass(frozen=True, slots=True)
class Message:
    """A received message; ``body`` is still as it was sent."""

    kind: Kind
    rank: int
    step: int
    sent_ns: int
    body: bytes


class Channel:
    """One end of a connection.

    Args:
        end: a ``SOCK_SEQPACKET`` socket, which belongs to the channel from now on.
        rank: of the worker that is at one of the ends.
        depth: how many messages with bodies may be on their way in one direction.

    Attributes:
        inline_bytes: the largest body that is sent through the socket itself.
    """

    def __init__(self, end: socket.socket, rank: int, depth: int) -> None:
        self._end = end
        self._rank = rank
        # Whoever sends must not block on who sends as well: both would wait for ever.
        self.inline_bytes = min(_LARGEST_INLINE, _SOCKET_BYTES // (depth + 1))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._end.fileno()

    def send(self, kind: Kind, step: int = -1, body: bytes = b"") -> None:
        """Send one message.

        Raises:
            OSError: the other end is gone.
        """
        if len(body) <= self.inline_bytes:
            header = HEADER.pack(kind, self._rank, step, time.monotonic_ns())
            self._end.send(header + body, socket.MSG_NOSIGNAL)
            return
        memory = os.memfd_create("gapless message", os.MFD_CLOEXEC)
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(body)
            header = HEADER.pack(kind | _IN_MEMORY, self._rank, step, time.monotonic_ns())
            socket.send_fds(self._end, [header + len(body).to_bytes(8, "little")], [memory])
        finally:
            os.close(memory)

    def send_file(self, descriptor: int) -> None:
        """Send a file, which the other end takes with ``receive_file``.

        Raises:
            OSError: the other end is gone.
        """
        header = HEADER.pack(Kind.FILE, self._rank, -1, time.monotonic_ns())
        socket.send_fds(self._end, [header], [descriptor])

    def receive_file(self) -> int:
        """Wait for a file and return its descriptor, the caller's to close; -1: the end is gone."""
        try:
            data, extra, _, _ = self._end.recvmsg(HEADER.size, _SPACE_FOR_ONE)
        except ConnectionResetError:
            return -1
        return int(_DESCRIPTOR.unpack(extra[0][2])[0]) if data and extra else -1

    def receive(self, *, blocking: bool = True) -> Message | None:
        """Take the next message; where there is none, wait for one, or return None.

        A closed connection is a message of the kind ``CLOSED``.
        """
        flags = 0 if blocking else socket.MSG_DONTWAIT
        for _ in range(2):
            try:
                # Not socket.recv_fds, which ignores the flags it is given.
                data, extra, _, _ = self._end.recvmsg(
                    HEADER.size + self.inline_bytes, _SPACE_FOR_ONE, flags
                )
                break
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # The other end left without having read all. What it had sent can still be read.
                continue
        else:
            data, extra = b"", []
        if not data:
            return Message(Kind.CLOSED, self._rank, -1, time.monotonic_ns(), b"")
        kind, rank, step, sent_ns = HEADER.unpack_from(data)
        body = data[HEADER.size :]
        if kind & _IN_MEMORY:
            kind &= ~_IN_MEMORY
            body = _contents(_DESCRIPTOR.unpack(extra[0][2])[0], int.from_bytes(body, "little"))
        return Message(Kind(kind), rank, step, sent_ns, body)

    def close(self) -> None:
        """Close this end; twice is harmless."""
        self._end.close()


def _contents(descriptor: int, size: int) -> bytes:
    try:
        with mmap(descriptor, size, prot=PROT_READ) as memory:
            return memory[:]
    finally:
        os.close(descriptor)


def packed(value: Any) -> bytes:
    """The value as a message's body. Tensors must be on the host.

    Raises:
        TypeError: a tensor is on a device, or something in the value cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"this cannot be sent to another process: {error}") from error
    return buffer.getvalue()


def unpacked(body: bytes) -> Any:
    """What was ``packed``."""
    return pickle.loads(body)


class _Pickler(pickle.Pickler):
    """torch's own way to pickle a tensor writes an archive: a hundred microseconds for a number."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if value.device.type != "cpu":
            raise TypeError(
                f"a tensor is on {value.device}, whose memory belongs to one process; send it on "
                "the host"
            )
        if value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return _tensor, (data, plain.dtype, tuple(plain.shape), value.requires_grad)


def _tensor(
    data: bytes, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).requires_grad_(requires_grad)
