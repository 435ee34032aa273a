"""The faults: what would be wrong, where, and which tests are asked.

Most are mistakes that real implementations have made (contract §20, and the list of what a public corpus does
not catch). ``find`` must occur exactly once in the file, so that a mutant cannot silently become a no-op.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]


RAFT: Final = "raft/core/"
CORPUS: Final = "tests/raft/test_corpus.py"
PAPER: Final = "tests/raft/test_paper.py"
ELECTIONS: Final = "tests/raft/test_elections.py"
REPLICATION: Final = "tests/raft/test_replication.py"
MEMBERSHIP: Final = "tests/raft/test_membership.py"
LOG: Final = "tests/raft/test_log.py"
READS: Final = "tests/raft/test_reads.py"
RULES: Final = "tests/raft/test_rules.py"
QUORUM: Final = "tests/raft/test_quorum.py"
TRANSFER: Final = "tests/raft/test_transfer.py"
SNAPSHOTS: Final = "tests/raft/test_snapshots.py"
CHECK_QUORUM: Final = "tests/raft/test_check_quorum.py"
FLOW: Final = "tests/raft/test_flow_control.py"
RAWNODE: Final = "tests/raft/test_rawnode.py"
DRIVER: Final = "tests/driver/test_driver.py"
POWER: Final = "tests/driver/test_power_loss.py"
LOGS: Final = "tests/driver/test_durable_log.py"
TAIL: Final = "tests/driver/test_tailfile.py"
ROUNDS: Final = "tests/driver/test_waiters_and_reads.py"
TRANSPORT: Final = "tests/driver/test_transport.py"
FUZZ: Final = "tests/driver/test_peer_fuzz.py"

MUTANTS: Final = (
    # what the public corpus catches
    Mutant(
        "a learner refuses to vote", RAFT + "elections.py",
        "        if not can_vote or not self.log", "        if self.is_learner or not can_vote or not self.log",
        (ELECTIONS, CORPUS),
    ),
    Mutant(
        "votes do not compare logs", RAFT + "elections.py",
        "if not can_vote or not self.log.is_up_to_date(message.log_term, message.index):", "if not can_vote:",
        (PAPER, ELECTIONS),
    ),
    Mutant(
        "a new leader appends no empty entry", RAFT + "elections.py",
        "        self.append_entries((Entry(self.term, last + 1),), 0)\n", "", (CORPUS, PAPER),
    ),
    Mutant(
        "leases are ignored when votes are asked", RAFT + "elections.py",
        "if not self.in_lease or message", "if True or message", (CHECK_QUORUM, CORPUS),
    ),
    Mutant(
        "a pre-candidate still has its leader", RAFT + "elections.py",
        "        self.tracker.votes.clear()\n        self.lead = NO_NODE\n",
        "        self.tracker.votes.clear()\n",
        (ELECTIONS, CORPUS),
    ),
    Mutant(
        "a heartbeat's commit index is not clamped to the match", RAFT + "replication.py",
        "commit = min(progress.match, self.log.committed)", "commit = self.log.committed", (REPLICATION, CORPUS),
    ),
    Mutant(
        "a new commit index is not sent at once", RAFT + "leader.py",
        "elif node != self.id and progress.can_bump_commit(self.log.committed):", "elif False:", (CORPUS,),
    ),
    Mutant(
        "the follower gives the naive hint", RAFT + "follower.py",
        "log.find_conflict_by_term(min(prev, log.last_index), message.log_term)", "(min(prev, log.last_index), 0)",
        (LOG, REPLICATION, CORPUS),
    ),
    Mutant(
        "the leader ignores the hint's term", RAFT + "leader.py",
        "if message.log_term > 0:", "if False:", (REPLICATION, CORPUS),
    ),
    Mutant(
        "a heartbeat answer does not unstick a caught-up probe", RAFT + "leader.py",
        "if progress.match < self.log.last_index or progress.state == ProgressState.PROBE:",
        "if progress.match < self.log.last_index:", (CORPUS,),
    ),
    Mutant(
        "a snapshot's progress waits for the exact snapshot", RAFT + "leader.py",
        "elif progress.match + 1 >= self.log.first_index:", "elif progress.match >= progress.pending_snapshot:",
        (SNAPSHOTS, CORPUS),
    ),
    Mutant(
        "an acknowledgement of an older term trims the log (ABA)", RAFT + "raft.py",
        "self.trace(AppendAckIgnored(self.id, AckIgnored.LOWER_TERM))",
        "self.log.stable_to(message.log_term, message.index)", (CORPUS,),
    ),
    Mutant(
        "a removed leader does not step down", RAFT + "membership.py",
        "if self.step_down_on_removal:", "if False:", (MEMBERSHIP, RULES, CORPUS),
    ),
    Mutant(
        "vote answers leave before they are durable", RAFT + "state.py",
        "frozenset({MessageType.APP_RESP, MessageType.VOTE_RESP, MessageType.PRE_VOTE_RESP})",
        "frozenset({MessageType.APP_RESP})", (CORPUS, PAPER),
    ),
    # what the public corpus does not catch
    Mutant(
        "an older term's entry is committed by counting", RAFT + "log.py",
        "not term or not self.matches(term, index)", "not term", (PAPER, REPLICATION),
    ),
    Mutant(
        "two votes in one term", RAFT + "elections.py",
        "            self.vote == message.from_\n", "            kind == MessageType.VOTE\n", (PAPER, ELECTIONS),
    ),
    Mutant(
        "campaigning with an unapplied configuration change", RAFT + "elections.py",
        "if self.has_unapplied_conf_change(self.log.committed):", "if False:", (ELECTIONS, MEMBERSHIP, TRANSFER),
    ),
    Mutant(
        "a second configuration change while one is pending", RAFT + "proposals.py",
        "elif pending > self.log.applied:", "elif False:", (MEMBERSHIP,),
    ),
    Mutant(
        "entries are applied before they are stable", RAFT + "log.py",
        "return self.committed if allow_unstable else min(self.committed, self.unstable.offset - 1)",
        "return self.committed", (LOG,),
    ),
    Mutant(
        "the limit of bytes under apply is ignored", RAFT + "log.py",
        "self.max_appliable_index(allow_unstable=allow_unstable) + 1, room)",
        "self.max_appliable_index(allow_unstable=allow_unstable) + 1, 1 << 60)", (FLOW, LOG, RAWNODE),
    ),
    Mutant(
        "proposals are accepted during a transfer", RAFT + "proposals.py",
        "if self.transferee != NO_NODE:", "if False:", (TRANSFER,),
    ),
    # classic mistakes (M-numbers of contract §20)
    Mutant(
        "M3: every append truncates", RAFT + "log.py",
        "conflict = self.find_conflict(entries)", "conflict = prev_index + 1 if entries else 0",
        (PAPER, LOG, REPLICATION),
    ),
    Mutant(
        "M4: the commit index follows the leader beyond the last new entry", RAFT + "log.py",
        "self.commit_to(min(leader_commit, last_new))", "self.commit_to(min(leader_commit, self.last_index))",
        (LOG, PAPER, REPLICATION),
    ),
    Mutant(
        "M6: a pre-vote of an earlier term is not answered", RAFT + "raft.py",
        "elif kind == MessageType.PRE_VOTE:", "elif kind is None:", (ELECTIONS, CHECK_QUORUM),
    ),
    Mutant(
        "M8: reads before an entry of the own term is committed", RAFT + "reads.py",
        "        if not self.committed_in_current_term():\n            self.postponed_reads",
        "        if False:\n            self.postponed_reads", (READS, RULES),
    ),
    Mutant(
        "M10: reads are confirmed by any echo", RAFT + "readonly.py",
        "if self._acks.get(node, 0) < position <= self._position:",
        "position = self._position\n            if True:",
        (READS,),
    ),
    Mutant(
        "M12: a transfer keeps its lease on votes", RAFT + "elections.py",
        "or message.context == TRANSFER_CONTEXT:", "or False:", (TRANSFER, CORPUS),
    ),
    Mutant(
        "M16: a learner stands for election", RAFT + "state.py",
        "progress is not None and not progress.is_learner and self.log", "progress is not None and self.log",
        (ELECTIONS, TRANSFER),
    ),
    Mutant(
        "M17: a new peer counts as silent", RAFT + "confchange.py",
        "recent_active = True", "recent_active = False", (CHECK_QUORUM, CORPUS),
    ),
    Mutant(
        "M26: next may fall to match", RAFT + "tracker.py",
        "self.next = max(min(rejected, hint + 1), self.match + 1)", "self.next = max(min(rejected, hint + 1), 1)",
        ("tests/raft/test_tracker.py", REPLICATION, "tests/raft/test_invariants.py"),
    ),
    Mutant(
        "M30: the uncommitted log has no bound", RAFT + "replication.py",
        "if size > 0 and payload > 0 and size + payload > self.max_uncommitted_size:", "if False:",
        (FLOW, RAWNODE),
    ),
    Mutant(
        "M31: a transfer never times out", RAFT + "leader.py",
        "                self.abort_transfer()  # it had a whole election timeout\n", "                pass\n",
        (TRANSFER,),
    ),
    Mutant(
        "M45: logs are compared by length before term", RAFT + "log.py",
        "return last_term > own or (last_term == own and last_index >= self.last_index)",
        "return last_index > self.last_index or (last_index == self.last_index and last_term >= own)",
        (LOG, PAPER),
    ),
    Mutant(
        "a quorum is half", RAFT + "quorum.py", "needed = len(voters) // 2 + 1", "needed = (len(voters) + 1) // 2",
        (QUORUM, CORPUS),
    ),
    Mutant(
        "a leader that lost its quorum stays", RAFT + "leader.py",
        "if not self.tracker.quorum_active(self.id):", "if False:", (CHECK_QUORUM, DRIVER),
    ),
    Mutant(
        "a snapshot is applied backwards", RAFT + "membership.py", "if snapshot.index <= self.log.committed:",
        "if False:", ("tests/raft/test_snapshots.py",),
    ),
    # the driver and what is around it
    Mutant(
        "M2: messages leave before the log is synced", "raft/logwriter.py",
        "                tell(self._under_way, ",
        "                self._stored(batch, writes)\n                tell(self._under_way, ",
        (POWER,),
    ),
    Mutant(
        "a notice that was held is lost", "raft/outbox.py",
        "if notice is not None and message.commit < notice.commit:", "if False:", ("tests/driver/test_outbox.py",),
    ),
    Mutant(
        "M2: what waits for a log write leaves with a later commit index", "raft/driver.py",
        "if not self._writer.is_idle or message.snapshot is not None:",
        "if message.snapshot is not None:",
        (POWER, DRIVER),
    ),
    Mutant(
        "entries are applied before those that still wait for their turn", "raft/driver.py",
        "if self._group is None or not self._apply_idle.is_set() or not self._application.has_room:",
        "if self._group is None or not self._application.has_room:", (DRIVER, POWER),
    ),
    Mutant(
        "a commit notice that does not match is believed", RAFT + "log.py",
        "        if not self.matches(prev_term, prev_index):\n            return None\n        last_new",
        "        if entries and not self.matches(prev_term, prev_index):\n"
        "            return None\n        last_new", ("tests/raft/test_commit_notices.py",),
    ),
    Mutant(
        "M2: votes are asked for before the term is written", "raft/driver.py",
        "for message in held_until_durable(ready.messages):", "for message in ready.messages:", (POWER,),
    ),
    Mutant(
        "M2: term and vote are not written", "raft/log.py",
        "return new is not None and (stored.term, stored.vote) != (new.term, new.vote)", "return False", (POWER,),
    ),
    Mutant(
        "M20: the applied position is believed although the log is shorter", "raft/driver.py",
        "if not loaded.snapshot.index <= applied <= last:", "if False:", (DRIVER,),
    ),
    Mutant(
        "M21: ticks that were missed are made up for", "raft/driver.py",
        "            self._node.tick()\n            self._reads.tick()\n",
        "            for _ in range(1 + min(50, int(late / tick_s))):\n                self._node.tick()\n"
        "            self._reads.tick()\n", (DRIVER,),
    ),
    Mutant(
        "M21: what a leader proposes as leader is forwarded to its successor", "raft/proposals.py",
        "if only_in not in (0, term):", "if False:", (DRIVER,),
    ),
    Mutant(
        "M21: expired leases are revoked by whoever leads", "store/lessor.py",
        "await self._replica.propose(request, as_leader=True)\n            self.revoked",
        "await self._replica.propose(request)\n            self.revoked", ("tests/store/test_lessor.py",),
    ),
    Mutant(
        "M21: a leader whose disk hangs stays", "raft/driver.py",
        "if since is None or not self._node.is_leader or now - since < election_s:", "if True:", (POWER,),
    ),
    Mutant(
        "M36: a failed sync is forgotten", "chaos/disk.py",
        "            raise self._failed from error\n        self._syncs += 1",
        "            return\n        self._syncs += 1",
        (POWER,),
    ),
    Mutant(
        "M36: a failed write of the log may be tried again", "raft/sqlite_log.py",
        "            self._failed = SyncFailed(self._path, error)\n            raise self._failed from error\n",
        "            raise SyncFailed(self._path, error) from error\n",
        ("tests/driver/test_sqlite_log.py",),
    ),
    Mutant(
        "stored entries above a rewritten one survive", "raft/logrows.py",
        "SET last = ? WHERE last >= ?\", (first - 1, first)", "SET last = ? WHERE last > ?\", (first, first)",
        (LOGS,),
    ),
    Mutant(
        "compaction takes the hard state along", "raft/logrows.py",
        "WHERE last <= ? AND seq < (SELECT max(seq) FROM writes)", "WHERE last <= ?", (LOGS,),
    ),
    Mutant(
        "a replaced tail takes the vote along", "raft/logrows.py",
        "write.hard_state or newest.hard_state", "write.hard_state or HardState()", (LOGS,),
    ),
    Mutant(
        "the newest writes are told before they are synced", "raft/tailfile.py",
        "\n        _sync(self._descriptor)\n", "\n", ("tests/driver/test_sqlite_log.py",),
    ),
    Mutant(
        "a torn record of the newest writes is read", "raft/tailfile.py",
        "return content if _checksum(salt, position, content) == checksum else None", "return content", (TAIL,),
    ),
    Mutant(
        "records of an earlier round are read", "raft/tailfile.py",
        "if found != salt or", "if", (TAIL,),
    ),
    Mutant(
        "a record of the newest writes counts wherever it lies", "raft/tailfile.py",
        "_CHECKED.pack(salt, position, len(content))", "_CHECKED.pack(salt, 0, len(content))", (TAIL,),
    ),
    Mutant(
        "a damaged record of the newest writes is taken for their end", "raft/tailfile.py",
        "for later in range(position + PAGE, len(data), PAGE):", "for later in ():", (TAIL,),
    ),
    Mutant(
        "rows that were taken over stay in force beside the database", "raft/logrows.py",
        "            if salt != self._salt:", "            if not self._salt:",
        ("tests/driver/test_sqlite_log.py",),
    ),
    Mutant(
        "what is in the tail alone is cut off by a truncation", "raft/logrows.py",
        "            db.executemany(_PUT, self._waiting)\n", "", (LOGS,),
    ),
    Mutant(
        "a torn record is read", "chaos/disk.py",
        "or zlib.crc32(body) != checksum:", "or False:", (POWER, LOGS),
    ),
    Mutant(
        "M40: connections for another cluster are welcome", "raft/transport.py",
        "if hello.cluster_id != own.cluster_id:", "if False:", (TRANSPORT,),
    ),
    Mutant(
        "M40: messages in another member's name are delivered", "raft/transport.py",
        "[m for m in messages if m.to == own and m.from_ == self._sender]", "messages", (TRANSPORT,),
    ),
    Mutant(
        "removed members are welcome", "raft/transport.py",
        "        if hello.from_ in self._removed:\n            return", "        if False:\n            return",
        (TRANSPORT,),
    ),
    Mutant(
        "M47: a refused change leaves its proposer waiting", "raft/driver.py",
        "        for refused in ready.refused_conf_changes:\n", "        for refused in ():\n", (DRIVER,),
    ),
    Mutant(
        "M48: a late reader shares the round under way", "raft/reads.py",
        "        self._next.append((future, self._clock() + self._timeout_s))\n",
        "        (self._current or self._next).append((future, self._clock() + self._timeout_s))\n", (ROUNDS,),
    ),
    Mutant(
        "M10: a read round's answer is taken whatever it answers", "raft/reads.py",
        "if context != self._context or not self._current:", "if not self._current:", (ROUNDS,),
    ),
    Mutant(
        "reads are served before their index is applied", "raft/reads.py",
        "            if index > applied:\n", "            if False:\n", (ROUNDS, DRIVER),
    ),
    Mutant(
        "M11: readers are not told of a new leader", "raft/driver.py",
        "                self._reads.leader_changed()\n", "                pass\n", (DRIVER,),
    ),
    Mutant(
        "M49: a proposal that may be applied is called refused", "raft/waiters.py",
        'self.resolve(request_id, OutcomeUnknown("the proposal was not applied in time"))',
        'self.resolve(request_id, NoLeader("the proposal was not applied in time"))', (ROUNDS, DRIVER),
    ),
    Mutant(
        "a change the application refused takes effect in the core", "raft/driver.py",
        "        if refusal is not None:  # the same",
        "        if refusal is not None and not self._node.apply_conf_change(change):  # the same",
        (DRIVER,),
    ),
    Mutant(
        "a heartbeat beyond the log is believed", RAFT + "follower.py",
        "if message.commit > self.log.last_index:", "if False:", (FUZZ,),
    ),
)  # fmt: skip
