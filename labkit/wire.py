"""Length-prefixed pickles over a stream socket, kept whole when a wait is interrupted in the middle of a message."""

import contextlib
import os
import pickle
import select
import socket
import struct
import time

_HEAD = struct.Struct("!I")


class Wire:
    """One end of a pipe between two processes. Not for two threads at once."""

    def __init__(self, sock: socket.socket):
        self.sock, self._in, self._out = sock, bytearray(), bytearray()

    def send(self, *message, timeout_s: float | None = None) -> None:
        """Raises TimeoutError when the other end takes nothing for so long (the message then goes out with the next
        call), or ConnectionError when it is gone."""
        blob = pickle.dumps(message)
        self._out += _HEAD.pack(len(blob)) + blob
        deadline = _deadline(timeout_s)
        while not self._write():
            self._wait(select.POLLOUT, deadline)

    def waiting(self) -> bool:
        """True when something can be read now (a message, a part of one, or the end)."""
        return bool(self._in) or bool(self._poll(select.POLLIN, 0))

    def recv(self, timeout_s: float | None = None) -> tuple:
        """The next message. Raises TimeoutError, or EOFError when the other end is gone."""
        deadline = _deadline(timeout_s)
        while True:
            if len(self._in) >= _HEAD.size:
                end = _HEAD.size + _HEAD.unpack_from(self._in)[0]
                if len(self._in) >= end:
                    blob = bytes(self._in[_HEAD.size : end])
                    del self._in[:end]
                    return pickle.loads(blob)
            ready = self._wait(select.POLLIN | (select.POLLOUT if self._out else 0), deadline)
            if self._out and ready & select.POLLOUT:
                with contextlib.suppress(ConnectionError):  # what it sent before it went can still be read
                    self._write()
            if ready & ~select.POLLOUT:
                self._read()

    def _read(self) -> None:
        try:
            piece = self.sock.recv(1 << 20)
        except ConnectionError:
            piece = b""
        if not piece:
            raise EOFError
        self._in += piece

    def _write(self) -> bool:
        """Send what the pipe takes now; True when that is all."""
        with contextlib.suppress(BlockingIOError):
            while self._out:
                sent = self.sock.send(self._out, socket.MSG_DONTWAIT)
                del self._out[:sent]
        return not self._out

    def _wait(self, events: int, deadline: float | None) -> int:
        ready = self._poll(events, None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3)
        if not ready:
            raise TimeoutError
        return ready

    def _poll(self, events: int, timeout_ms: float | None) -> int:
        poll = select.poll()  # not select(): it refuses descriptors above 1023
        poll.register(self.sock, events)
        return next((ready for _, ready in poll.poll(timeout_ms)), 0)

    def close(self) -> None:
        self.sock.close()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def unix_address(path: str):
    """An address for a Unix socket below a folder of any length (sun_path holds 107 bytes only).

    Returns (address, fd): the fd of the folder must stay open while the address is used, and be closed after.
    """
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    return f"/proc/self/fd/{folder}/{os.path.basename(path)}", folder
