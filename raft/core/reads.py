"""Linearizable reads at the leader (thesis §6.4; contract §12)."""

from __future__ import annotations

from . import quorum
from .errors import MalformedMessage
from .replication import Replication
from .types import NO_NODE, Message, MessageType, ReadState


class Reads(Replication):
    """ReadIndex: postponed until the leader knows the latest commit, then confirmed by a quorum or a lease."""

    def handle_read_request(self, request: Message) -> None:
        """A read that came to the leader, local or forwarded.

        Before an entry of its own term is committed a leader may lag behind what its predecessor
        acknowledged, in a cluster of one as well: the read waits.
        """
        if len(request.entries) != 1:
            raise MalformedMessage("a read request must carry exactly one entry")
        if not self.committed_in_current_term():
            self.postponed_reads.append(request)
        elif self.lease_reads or self._is_quorum_by_itself():
            self._answer_read(request, self.log.committed)
        else:
            self.reads.add(request, self.log.committed, self.id)
            self.broadcast_heartbeat()

    def _is_quorum_by_itself(self) -> bool:
        return self.tracker.is_singleton and self.id in self.tracker.config.incoming

    def release_postponed_reads(self) -> None:
        """The commit index advanced: serve what waited for the first commit of the term."""
        if self.postponed_reads and self.committed_in_current_term():
            waiting, self.postponed_reads = self.postponed_reads, []
            for request in waiting:
                self.handle_read_request(request)

    def acknowledge_reads(self, node: int, context: bytes) -> None:
        """``node`` echoed a read round: answer every read that a quorum has confirmed by now."""
        if not context or not self.reads:
            return
        acks, config = self.reads.acknowledge(node, context), self.tracker.config
        position = quorum.joint_committed_index(config.incoming, config.outgoing, acks)
        for read in self.reads.confirm(position):
            self._answer_read(read.request, read.commit)

    def _answer_read(self, request: Message, index: int) -> None:
        context = request.entries[0].data
        if request.from_ in (NO_NODE, self.id):
            self.read_states.append(ReadState(index, context))
            return
        self.send(
            Message(
                MessageType.READ_INDEX_RESP,
                request.from_,
                self.id,
                self.term,
                index=index,
                entries=request.entries,
            )
        )
