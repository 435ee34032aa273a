"""A future for what another thread does, whose end is heard of without a turn of the loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A future whose end one function hears of at once; callbacks wait for the next turn of the loop, as ever.

    A turn more is a poll of the sockets more, 30 us where nothing else happens.
    """

    then: Callable[[asyncio.Future[T]], Any] | None = None
    """Must not raise. Not called for a future that is cancelled."""

    def set_result(self, result: T, /) -> None:
        super().set_result(result)
        if self.then is not None:
            self.then(self)

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        if self.then is not None:
            self.then(self)


def tell(future: asyncio.Future[T], then: Callable[[asyncio.Future[T]], Any]) -> None:
    """Have ``then`` hear of the end of ``future``, as soon as that kind of future allows."""
    if isinstance(future, PromptFuture):
        future.then = then
    else:
        future.add_done_callback(then)
