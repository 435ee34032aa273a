"""Proposals at the leader: what is refused, what is appended (contract §11, §14)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from . import confchange
from .errors import DropReason, MalformedMessage, ProposalDropped
from .reads import Reads
from .sizes import payload_size
from .trace import ConfChangeIgnored, RefusedChange
from .types import NO_NODE, Entry, EntryType, Message, MessageType, RefusedConfChange


class Proposals(Reads):
    """An accepted proposal may still be lost with the leadership: its outcome is then unknown."""

    def append_proposed(self, datas: Sequence[bytes]) -> None:
        """Append ordinary entries with this data and send them; the hot path of a write.

        Raises ProposalDropped; then nothing was appended.
        """
        self._check_accepting()
        first = self.log.last_index + 1
        indexes = range(first, first + len(datas))
        entries = list(map(Entry, repeat(self.term), indexes, repeat(EntryType.NORMAL), datas))
        if not self.append_entries(entries, sum(map(len, datas))):
            raise ProposalDropped(DropReason.UNCOMMITTED_LIMIT)
        self.broadcast_append()

    def append_message(self, message: Message) -> bool:
        """Append the entries of a proposal, local or forwarded.

        False when a configuration change among them was refused: an empty entry took its place. Raises
        ProposalDropped; then nothing was appended.
        """
        if not message.entries:
            raise MalformedMessage("a proposal without entries")
        self._check_accepting()
        entries: list[Entry] = []
        refused: list[tuple[Entry, RefusedChange, bytes]] = []
        pending = self.pending_conf_index
        for index, proposed in enumerate(message.entries, self.log.last_index + 1):
            entry = Entry(self.term, index, proposed.type, proposed.data)
            if entry.type != EntryType.NORMAL:
                reason, context = self._why_refused(entry, pending)
                if reason is None:
                    pending = index
                else:
                    entry = Entry(self.term, index)
                    refused.append((entry, reason, context))
            entries.append(entry)
        if not self.append_entries(entries, payload_size(entries)):
            raise ProposalDropped(DropReason.UNCOMMITTED_LIMIT)
        self.pending_conf_index = pending
        for entry, reason, context in refused:
            self._report_refused(message.from_, entry.index, reason, context)
        self.broadcast_append()
        return not refused

    def _check_accepting(self) -> None:
        if self.id not in self.tracker.progress:
            raise ProposalDropped(DropReason.NOT_IN_CONFIG)
        if self.transferee != NO_NODE:
            raise ProposalDropped(DropReason.TRANSFERRING)

    def _why_refused(self, entry: Entry, pending: int) -> tuple[RefusedChange | None, bytes]:
        """One change at a time, in an order that joint configurations allow; with the change's context."""
        try:
            change = confchange.as_v2(confchange.decode(entry))
        except MalformedMessage:
            return RefusedChange.MALFORMED, b""  # every member would have to stop at such an entry
        joint, leaves = self.tracker.config.is_joint, confchange.leaves_joint(change)
        reason: RefusedChange | None = None
        if not self.validates_conf_changes:
            reason = None
        elif pending > self.log.applied:
            reason = RefusedChange.PENDING
        elif joint and not leaves:
            reason = RefusedChange.JOINT
        elif not joint and leaves:
            reason = RefusedChange.NOT_JOINT
        return reason, change.context

    def _report_refused(self, origin: int, index: int, reason: RefusedChange, context: bytes) -> None:
        """Whoever proposed must hear of it, or it would wait for an entry that never comes (M47)."""
        self.trace(ConfChangeIgnored(self.id, index, reason, context))
        if origin in (NO_NODE, self.id):
            self.refused_conf_changes.append(RefusedConfChange(index, context))
        elif context:
            self.send(
                Message(MessageType.CONF_CHANGE_REFUSED, origin, self.id, self.term, index=index, context=context)
            )
