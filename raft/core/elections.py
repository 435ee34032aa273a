"""Elections: standing for one, voting, and what a winner does first (paper §5.2, §5.4.1; contract §4, §7)."""

from __future__ import annotations

from typing import Final

from .errors import InvariantViolation
from .membership import Membership
from .quorum import VoteResult
from .roles import Cause, next_role
from .trace import CampaignRefused, RefusedCampaign, RoleChanged, Voted, VoteIgnored
from .types import NO_NODE, Entry, Message, MessageType, Role

TRANSFER_CONTEXT: Final = b"transfer"
"""Marks the votes of a leadership transfer, which leases do not refuse."""

_RESPONSE: Final = {
    MessageType.VOTE: MessageType.VOTE_RESP,
    MessageType.PRE_VOTE: MessageType.PRE_VOTE_RESP,
}
_OWN_RESPONSE: Final = {
    Role.CANDIDATE: MessageType.VOTE_RESP,
    Role.PRE_CANDIDATE: MessageType.PRE_VOTE_RESP,
}


class Elections(Membership):
    """Both flavours: PreVote asks whether an election could be won before the term is raised (thesis §9.6)."""

    # --- standing

    def tick_election(self) -> None:
        """One tick without leading; after the randomized timeout, an election."""
        self.election_elapsed += 1
        if self.election_elapsed >= self.randomized_election_timeout and self.promotable:
            self.election_elapsed = 0
            self.hup()

    def hup(self) -> None:
        """Stand for election in the configured flavour."""
        self.campaign(Cause.PRE_VOTE_STARTED if self.pre_vote else Cause.ELECTION_STARTED)

    def campaign(self, cause: Cause) -> None:
        """Stand for election, unless this node must not."""
        refused = self._why_not_campaign()
        if refused is not None:
            self.trace(CampaignRefused(self.id, refused))
        elif cause == Cause.PRE_VOTE_STARTED:
            self.become_pre_candidate()
            self._request_votes(MessageType.PRE_VOTE, self.term + 1)
        else:
            self.become_candidate(cause)
            context = TRANSFER_CONTEXT if cause == Cause.TRANSFER_STARTED else b""
            self._request_votes(MessageType.VOTE, self.term, context)

    def _why_not_campaign(self) -> RefusedCampaign | None:
        if self.role == Role.LEADER:
            return RefusedCampaign.ALREADY_LEADER
        if not self.promotable:
            return RefusedCampaign.NOT_PROMOTABLE
        # A node that lags behind a committed change would count the votes of an old configuration. (A snapshot
        # that waits to be applied makes it unpromotable, so that every entry is at hand here.)
        if self.has_unapplied_conf_change(self.log.committed):
            return RefusedCampaign.UNAPPLIED_CONF_CHANGE
        return None

    def _request_votes(self, kind: MessageType, term: int, context: bytes = b"") -> None:
        last, last_term = self.log.last_index, self.log.last_term
        for node in sorted(self.tracker.config.voters):
            if node == self.id:
                # The own vote counts once it is durable, like anybody's.
                self.send(Message(_RESPONSE[kind], node, self.id, term))
            else:
                self.send(Message(kind, node, self.id, term, last_term, last, context=context))

    # --- roles

    def become_pre_candidate(self) -> None:
        """Keeps term, vote and timers; forgets the leader, or it would refuse the pre-votes of others."""
        self.role = next_role(self.role, Cause.PRE_VOTE_STARTED)
        self.tracker.votes.clear()
        self.lead = NO_NODE
        self.trace(RoleChanged(self.id, self.role, self.term))

    def become_candidate(self, cause: Cause) -> None:
        """A new term, and the own vote in it."""
        role = next_role(self.role, cause)
        if role != Role.CANDIDATE:
            raise InvariantViolation(f"{cause} does not lead to a candidate")
        self.reset(self.term + 1)
        self.vote = self.id
        self.role = role
        self.trace(RoleChanged(self.id, role, self.term))
        self.trace(Voted(self.id, self.term, self.id))

    def become_leader(self) -> None:
        """Append an empty entry, the first that this leader may commit by counting (paper §8)."""
        role = next_role(self.role, Cause.ELECTION_WON)
        self.reset(self.term)
        self.role = role
        self.lead = self.id
        own = self.tracker.progress[self.id]
        own.become_replicate()
        own.recent_active = True
        # Conservative: any entry of the log might be a change that is not applied yet.
        last = self.log.last_index
        self.pending_conf_index = last
        self.append_entries((Entry(self.term, last + 1),), 0)
        self.trace(RoleChanged(self.id, role, self.term))

    # --- voting

    def ignores_vote_request(self, message: Message) -> bool:
        """While the leader is alive an election for a higher term is a disturbance (thesis §4.2.3)."""
        if not self.in_lease or message.context == TRANSFER_CONTEXT:
            return False
        remaining = self.election_timeout - self.election_elapsed
        self.trace(VoteIgnored(self.id, message.type, message.from_, remaining))
        return True

    def handle_vote_request(self, message: Message) -> None:
        """One vote per term, for a log at least as complete as the own (paper §5.2, §5.4.1).

        Learners vote too: a candidate may know of a promotion that the learner has not applied yet.
        """
        kind = message.type
        can_vote = (
            self.vote == message.from_
            or (self.vote == NO_NODE and self.lead == NO_NODE)
            or (kind == MessageType.PRE_VOTE and message.term > self.term)
        )
        if not can_vote or not self.log.is_up_to_date(message.log_term, message.index):
            self.send(Message(_RESPONSE[kind], message.from_, self.id, self.term, reject=True))
            return
        # The term of the request, which for a pre-vote is not the own one: else the answer would be stale.
        self.send(Message(_RESPONSE[kind], message.from_, self.id, message.term))
        if kind == MessageType.VOTE:
            self.election_elapsed = 0
            self.vote = message.from_
            self.trace(Voted(self.id, self.term, message.from_))

    # --- a candidate's messages

    def handle_vote_response(self, message: Message) -> None:
        """Count the answer to the election this node stands in, and act when it is decided."""
        if message.type != _OWN_RESPONSE[self.role]:
            return
        self.tracker.record_vote(message.from_, not message.reject)
        result = self.tracker.tally()
        if result == VoteResult.LOST:
            self.become_follower(self.term, NO_NODE, Cause.ELECTION_LOST)
        elif result == VoteResult.WON and self.role == Role.PRE_CANDIDATE:
            self.campaign(Cause.PRE_VOTE_WON)
        elif result == VoteResult.WON:
            self.become_leader()
            self.broadcast_append()
