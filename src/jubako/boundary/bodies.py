"""How many bytes of request bodies the server holds at one time, all requests together.

A body is held from the moment it is let in until it was parsed or given up. One tenant may hold no more than it leaves
free: alone it can have half of the room, and a newcomer always finds some. Knows nothing of how a body is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jubako.errors import Busy

LEAST_WAIT_SECONDS = 0.1
_HELD_WEIGHT = 0.1


class Room:
    """What one request holds. Made by `Bodies.room`, which gives it back."""

    __slots__ = ("_bodies", "_tenant", "size")

    def __init__(self, bodies: Bodies, tenant: str) -> None:
        self._bodies = bodies
        self._tenant = tenant
        self.size = 0

    def require(self, size: int) -> None:
        """Hold `size` bytes in all, or as many as are held already if that is more; raises `Busy`, and takes nothing.

        To be called before the bytes are read where their number is known, and as they come where it is not.
        """
        if size > self.size:
            self._bodies.take(self._tenant, size - self.size, held=self.size)
            self.size = size


class Bodies:
    """The room for bodies of one server. Everything happens in one event loop."""

    def __init__(self, held_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = held_bytes
        self._clock = clock
        self._by_tenant: dict[str, int] = {}
        self._held_seconds = 1.0
        """How long bodies are held, newer ones counting more."""
        self.held = 0
        """Bytes, at this moment."""

    @contextmanager
    def room(self, tenant: str) -> Iterator[Room]:
        """Room for one body of `tenant`, empty at first; what it holds is given back at the end of the block."""
        room, since = Room(self, tenant), self._clock()
        try:
            yield room
        finally:
            if room.size:
                self._give_back(tenant, room.size)
                self._held_seconds += _HELD_WEIGHT * (self._clock() - since - self._held_seconds)

    def take(self, tenant: str, more: int, *, held: int) -> None:
        """For `Room.require`: take `more` for a request that holds `held`; raises `Busy`.

        A body that is alone is let in whatever its size: what it may have is bounded by `limits.body_bytes`.
        """
        of_tenant = self._by_tenant.get(tenant, 0)
        excess = of_tenant + self.held + more - self._most
        if excess > 0 and self.held > held:
            raise Busy(
                "The server is reading as many bytes of request bodies as it may at one time.",
                code="queue_full",
                retry_after_seconds=max(LEAST_WAIT_SECONDS, self._held_seconds * min(1.0, excess / self.held)),
            )
        self.held += more
        self._by_tenant[tenant] = of_tenant + more

    def _give_back(self, tenant: str, size: int) -> None:
        self.held -= size
        left = self._by_tenant[tenant] - size
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]
