"""Who the members are: ids, URLs and names, replicated beside the Raft configuration (contract §8, §25).

Every change is checked and applied deterministically: the same entry gives the same answer on every member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import msgpack

from raft.core.types import ConfChange, ConfChangeType, ConfChangeV2, ConfState
from store.replica import MemberInfo

DEFAULT_MAX_LEARNERS: Final = 1


class ClusterError(Exception):
    """A membership change that the cluster refuses."""


class MemberExists(ClusterError):
    pass


class PeerUrlExists(ClusterError):
    pass


class MemberNotFound(ClusterError):
    pass


class MemberNotLearner(ClusterError):
    pass


class TooManyLearners(ClusterError):
    pass


class LastVoter(ClusterError):
    pass


def member_id(peer_urls: Iterable[str], token: str, unix_s: int | None = None) -> int:
    """The first eight bytes of SHA-1 over the sorted peer URLs and the token (and the time, for a member added
    later), as etcd makes it: two members added with the same URLs at different times differ."""
    text = "".join(sorted(peer_urls)) + token + ("" if unix_s is None else str(unix_s))
    return int.from_bytes(hashlib.sha1(text.encode(), usedforsecurity=False).digest()[:8], "big")


def cluster_id(member_ids: Iterable[int]) -> int:
    """The first eight bytes of SHA-1 over the sorted ids of the initial members."""
    joined = b"".join(number.to_bytes(8, "big") for number in sorted(member_ids))
    return int.from_bytes(hashlib.sha1(joined, usedforsecurity=False).digest()[:8], "big")


class ChangeKind(IntEnum):
    ADD = 0
    REMOVE = 1
    UPDATE = 2
    PROMOTE = 3


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A change as it travels in a configuration-change entry. Only ADD and UPDATE use ``peer_urls``."""

    kind: ChangeKind
    id: int
    peer_urls: tuple[str, ...] = ()
    is_learner: bool = False

    def encode(self) -> bytes:
        return bytes(msgpack.packb((int(self.kind), self.id, self.peer_urls, self.is_learner)))

    @classmethod
    def decode(cls, data: bytes) -> MemberChange:
        kind, number, urls, is_learner = msgpack.unpackb(data)
        return cls(ChangeKind(kind), number, tuple(urls), is_learner)

    def conf_change(self) -> ConfChangeV2:
        """The Raft configuration change that goes with it."""
        if self.kind is ChangeKind.ADD:
            kind = ConfChangeType.ADD_LEARNER if self.is_learner else ConfChangeType.ADD_VOTER
        else:
            kind = {
                ChangeKind.REMOVE: ConfChangeType.REMOVE,
                ChangeKind.UPDATE: ConfChangeType.UPDATE,
                ChangeKind.PROMOTE: ConfChangeType.ADD_VOTER,
            }[self.kind]
        return ConfChangeV2(changes=(ConfChange(kind, self.id),), context=self.encode())


@dataclass
class Membership:
    """The members and the ids that were removed for good."""

    members: dict[int, MemberInfo] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    max_learners: int = DEFAULT_MAX_LEARNERS

    def sorted(self) -> Sequence[MemberInfo]:
        return [self.members[number] for number in sorted(self.members)]

    def voters(self) -> list[int]:
        return [number for number, member in self.members.items() if not member.is_learner]

    def check(self, change: MemberChange) -> ClusterError | None:
        """Why ``change`` is refused, or None."""
        member = self.members.get(change.id)
        if change.kind is ChangeKind.ADD:
            if member is not None or change.id in self.removed:
                return MemberExists(f"member {change.id:x} exists or existed")
            if self._url_taken(change):
                return PeerUrlExists("a member with such a peer URL exists")
            if change.is_learner and self._learners() >= self.max_learners:
                return TooManyLearners(f"{self.max_learners} learner at most")
            return None
        if member is None:
            return MemberNotFound(f"no member {change.id:x}")
        if change.kind is ChangeKind.PROMOTE and not member.is_learner:
            return MemberNotLearner(f"member {change.id:x} is a voter already")
        if change.kind is ChangeKind.UPDATE and self._url_taken(change):
            return PeerUrlExists("a member with such a peer URL exists")
        if change.kind is ChangeKind.REMOVE and self.voters() == [change.id]:
            return LastVoter("the last voter cannot be removed")
        return None

    def _url_taken(self, change: MemberChange) -> bool:
        taken = {url for member in self.members.values() if member.id != change.id for url in member.peer_urls}
        return not taken.isdisjoint(change.peer_urls)

    def _learners(self) -> int:
        return sum(member.is_learner for member in self.members.values())

    def apply(self, change: MemberChange) -> None:
        """Make a change that ``check`` accepted."""
        if change.kind is ChangeKind.ADD:
            self.members[change.id] = MemberInfo(change.id, "", change.peer_urls, (), change.is_learner)
        elif change.kind is ChangeKind.REMOVE:
            del self.members[change.id]
            self.removed.add(change.id)
        elif change.kind is ChangeKind.UPDATE:
            self.members[change.id] = replace(self.members[change.id], peer_urls=change.peer_urls)
        else:
            self.members[change.id] = replace(self.members[change.id], is_learner=False)

    def publish(self, number: int, name: str, client_urls: Iterable[str]) -> None:
        """A member says its name and client URLs; of a member that was removed meanwhile, nothing is kept."""
        member = self.members.get(number)
        if member is not None:
            self.members[number] = replace(member, name=name, client_urls=tuple(client_urls))

    def encode(self) -> bytes:
        rows = [(m.id, m.name, m.peer_urls, m.client_urls, m.is_learner) for m in self.sorted()]
        return bytes(msgpack.packb((rows, sorted(self.removed))))

    @classmethod
    def decode(cls, data: bytes) -> Membership:
        rows, removed = msgpack.unpackb(data)
        members = [MemberInfo(row[0], row[1], tuple(row[2]), tuple(row[3]), row[4]) for row in rows]
        return cls({member.id: member for member in members}, set(removed))

    def conf_state(self) -> ConfState:
        """The Raft configuration of a cluster that starts with these members."""
        learners = sorted(m.id for m in self.members.values() if m.is_learner)
        return ConfState(voters=tuple(sorted(self.voters())), learners=tuple(learners))
