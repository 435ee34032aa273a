"""What a follower does with messages, and every role with its leader's (paper §5.3; contract §5)."""

from __future__ import annotations

from .elections import Elections
from .errors import DropReason, MalformedMessage, ProposalDropped
from .roles import Cause
from .trace import CommitAdvanced
from .types import NO_NODE, NOTICE, Message, MessageType, ReadState, RefusedConfChange, Role


class Follower(Elections):
    """Handlers named after what arrives."""

    # --- from the leader

    def hear_leader(self, message: Message) -> None:
        """A message that only the leader of this term sends: candidates yield, the timeout starts anew."""
        if self.role != Role.FOLLOWER:
            self.become_follower(message.term, message.from_, Cause.LEADER_FOUND)
        self.election_elapsed = 0
        self.lead = message.from_

    def on_append(self, message: Message) -> None:
        """Append what is missing, or say where the logs part (paper figure 2, AppendEntries)."""
        _check_append(message)
        self.hear_leader(message)
        log, prev = self.log, message.index
        answered = message.context != NOTICE or bool(message.entries)
        if prev < log.committed:
            if prev + 1 >= log.first_index and not log.matches(message.log_term, prev):
                raise MalformedMessage(
                    f"the leader of term {message.term} has another entry {prev} than was committed here: members "
                    "lost what they had acknowledged, or the message is forged"
                )
            if answered:
                self._acknowledge(message.from_, log.committed)
            return
        before = log.committed
        last = log.maybe_append(prev, message.log_term, message.entries, message.commit)
        if last is not None:
            if log.committed > before:
                self.trace(CommitAdvanced(self.id, log.committed))
            if answered:
                self._acknowledge(message.from_, last)
            return
        hint, hint_term = log.find_conflict_by_term(min(prev, log.last_index), message.log_term)
        self.send(
            Message(
                MessageType.APP_RESP,
                message.from_,
                self.id,
                self.term,
                hint_term,
                prev,
                reject=True,
                reject_hint=hint,
            )
        )

    def on_heartbeat(self, message: Message) -> None:
        """Follow the commit index the leader knows to be here; echo its read round."""
        self.hear_leader(message)
        if message.commit > self.log.last_index:
            raise MalformedMessage(
                f"the leader counts on entries up to {message.commit} here, and this log ends at "
                f"{self.log.last_index}: it was lost or replaced, or the message is forged"
            )
        self.commit_to(message.commit)
        self.send(Message(MessageType.HEARTBEAT_RESP, message.from_, self.id, self.term, context=message.context))

    def on_snapshot(self, message: Message) -> None:
        """Take over a snapshot, or acknowledge that it is not needed."""
        if message.snapshot is None:
            raise MalformedMessage("a snapshot message without a snapshot")
        self.hear_leader(message)
        restored = self.restore(message.snapshot)
        self._acknowledge(message.from_, self.log.last_index if restored else self.log.committed)

    def _acknowledge(self, to: int, index: int) -> None:
        self.send(Message(MessageType.APP_RESP, to, self.id, self.term, 0, index))

    def on_timeout_now(self, message: Message) -> None:
        """The leader hands over: no pre-vote, and leases do not count (thesis §3.10)."""
        self.campaign(Cause.TRANSFER_STARTED)

    # --- forwarded to the leader

    def on_proposal(self, message: Message) -> bool:
        """Forward, or drop; True because a forwarded change was at least not refused here."""
        if self.lead == NO_NODE:
            raise ProposalDropped(DropReason.NO_LEADER)
        if not self.forwards_proposals:
            raise ProposalDropped(DropReason.FORWARDING_DISABLED)
        self._forward(message, term=0)
        return True

    def on_read_index(self, message: Message) -> None:
        """Forward; without a leader the read is lost and the caller asks again."""
        if self.lead != NO_NODE:
            self._forward(message, term=0)

    def on_transfer_leader(self, message: Message) -> None:
        """Forward the wish; without a leader there is nothing to transfer."""
        if self.lead != NO_NODE:
            self._forward(message, term=self.term)

    def _forward(self, message: Message, term: int) -> None:
        origin = message.from_ or self.id
        self.send(message._replace(to=self.lead, from_=origin, term=term))

    def drop_proposal(self, message: Message) -> bool:
        """A candidate knows no leader."""
        raise ProposalDropped(DropReason.NO_LEADER)

    # --- answers to what was forwarded

    def on_read_response(self, message: Message) -> None:
        if len(message.entries) != 1:
            raise MalformedMessage("a read response must carry exactly one entry")
        self.read_states.append(ReadState(message.index, message.entries[0].data))

    def on_conf_change_refused(self, message: Message) -> None:
        self.refused_conf_changes.append(RefusedConfChange(message.index, message.context))

    # --- local

    def on_forget_leader(self, message: Message) -> None:
        """Stop believing in the leader, so that votes can be granted at once. A lease must not be forgotten."""
        if not self.lease_reads:
            self.lead = NO_NODE


def _check_append(message: Message) -> None:
    """Both ends of the entries, at no cost per entry; ``log.check_log_slice`` is the whole rule."""
    entries = message.entries
    if not entries:
        return
    expected = message.index + 1
    if entries[0].index != expected or entries[-1].index != message.index + len(entries):
        raise MalformedMessage(f"append after {message.index} with entries that do not start at {expected}")
    if not message.log_term <= entries[0].term <= entries[-1].term <= message.term:
        raise MalformedMessage(f"append of term {message.term} with an entry of term {entries[-1].term}")
