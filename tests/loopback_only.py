"""Run a command in a network namespace that has the loopback interface and nothing else. Needs root.

Usage: loopback_only.py COMMAND ARGUMENT…
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
UP_LOOPBACK_RUNNING = 0x49


def main(command: list[str]) -> None:
    """Leave the network, bring up loopback, become `command`."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET) failed; it needs root")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP_LOOPBACK_RUNNING))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
