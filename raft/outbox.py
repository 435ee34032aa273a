"""What leaves for the peers, and when."""

from __future__ import annotations

from collections.abc import Sequence

from raft.core.types import Message
from raft.transport import Transport


class Outbox:
    """Sends at once, except for commit notices that are held: those go when nothing else is left to do.

    A peer that is told of a commit wakes up, on the core that the answer to the client needs. The client waits for
    its answer, the peer only learns of something.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._notices: dict[int, Message] = {}

    @property
    def holds_notices(self) -> bool:
        return bool(self._notices)

    def hold(self, notice: Message) -> None:
        """Keep a notice until ``release``, in the place of an earlier one to the same peer."""
        self._notices[notice.to] = notice

    def send(self, messages: Sequence[Message]) -> None:
        """Send now, in order. A notice that is held for one of these peers goes before; entries are told with the
        commit index anyway."""
        for message in messages if self._notices else ():
            notice = self._notices.pop(message.to, None)
            if notice is not None and message.commit < notice.commit:
                self._transport.send((notice,))
        self._transport.send(messages)

    def release(self) -> None:
        """Send the notices that are held."""
        if self._notices:
            notices = list(self._notices.values())
            self._notices.clear()
            self._transport.send(notices)
