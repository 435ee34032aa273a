"""Who the members are: ids, URLs and names, replicated beside the Raft configuration (contract §8, §25).

Every change is checked and applied deterministically: the same entry gives the same answer on every member.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

import msgpack

from raft.core.types import ConfChange, ConfChangeType, ConfChangeV2, ConfState
from store.replica import MemberInfo

DEFAULT_MAX_LEARNERS: Final = 1
NO_LEARNER_LIMIT: Final = 1 << 30
MEMBERS: Final = "members"
MEMBERS_REMOVED: Final = "members_removed"


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


BucketWrite = tuple[str, bytes, bytes | None]
"""Bucket name, key, and the value it gets (None: deleted)."""


class Membership:
    """The members and the ids that were removed for good: a view of two buckets of the replicated state.

    Bucket ``members`` maps the id in hex to a JSON document, ``members_removed`` to the word "removed"
    (contract §14). Members are few and change rarely, so they are read anew each time.
    """

    def __init__(
        self,
        members: Mapping[bytes, bytes],
        removed: Mapping[bytes, bytes],
        max_learners: int = DEFAULT_MAX_LEARNERS,
    ) -> None:
        self._members = members
        self._removed = removed
        self.max_learners = max_learners

    def members(self) -> list[MemberInfo]:
        """Sorted by id."""
        return sorted(map(decode_member, self._members.values()), key=lambda member: member.id)

    def get(self, number: int) -> MemberInfo | None:
        stored = self._members.get(member_key(number))
        return None if stored is None else decode_member(stored)

    def removed(self) -> set[int]:
        return {int(key, 16) for key in self._removed}

    def voters(self) -> list[int]:
        return [member.id for member in self.members() if not member.is_learner]

    def check(self, change: MemberChange) -> ClusterError | None:
        """Why ``change`` is refused, or None."""
        member = self.get(change.id)
        if change.kind is ChangeKind.ADD:
            if member is not None or change.id in self.removed():
                return MemberExists(f"member {change.id:x} exists or existed")
            if self._url_taken(change):
                return PeerUrlExists("a member with such a peer URL exists")
            if change.is_learner and len(self.members()) - len(self.voters()) >= self.max_learners:
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

    def shows(self, change: MemberChange) -> bool:
        """Whether ``change`` is in effect already."""
        member = self.get(change.id)
        if change.kind is ChangeKind.REMOVE:
            return change.id in self.removed()
        if member is None:
            return False
        if change.kind is ChangeKind.UPDATE:
            return tuple(member.peer_urls) == change.peer_urls
        return change.kind is ChangeKind.ADD or not member.is_learner

    def _url_taken(self, change: MemberChange) -> bool:
        taken = {url for member in self.members() if member.id != change.id for url in member.peer_urls}
        return not taken.isdisjoint(change.peer_urls)

    def writes(self, change: MemberChange) -> list[BucketWrite]:
        """What a change that ``check`` accepted does to the buckets."""
        key = member_key(change.id)
        if change.kind is ChangeKind.REMOVE:
            return [(MEMBERS, key, None), (MEMBERS_REMOVED, key, b"removed")]
        if change.kind is ChangeKind.ADD:
            member = MemberInfo(change.id, "", change.peer_urls, (), change.is_learner)
        else:
            member = decode_member(self._members[key])
            if change.kind is ChangeKind.UPDATE:
                member = replace(member, peer_urls=change.peer_urls)
            else:
                member = replace(member, is_learner=False)
        return [(MEMBERS, key, encode_member(member))]


def member_key(number: int) -> bytes:
    return b"%x" % number


def encode_member(member: MemberInfo) -> bytes:
    document: dict[str, Any] = {"id": member.id, "peerURLs": list(member.peer_urls)}
    if member.is_learner:
        document["isLearner"] = True
    if member.name:
        document["name"] = member.name
    if member.client_urls:
        document["clientURLs"] = list(member.client_urls)
    return json.dumps(document, separators=(",", ":")).encode()


def decode_member(stored: bytes) -> MemberInfo:
    document = json.loads(stored)
    return MemberInfo(
        document["id"],
        document.get("name", ""),
        tuple(document.get("peerURLs", ())),
        tuple(document.get("clientURLs", ())),
        document.get("isLearner", False),
    )


def encode_conf_state(conf_state: ConfState) -> bytes:
    """A configuration as etcd stores it beside the data."""
    document: dict[str, Any] = {"voters": list(conf_state.voters), "auto_leave": conf_state.auto_leave}
    for name in ("learners", "voters_outgoing", "learners_next"):
        ids = getattr(conf_state, name)
        if ids:
            document[name] = list(ids)
    return json.dumps(document, separators=(",", ":")).encode()


def decode_conf_state(stored: bytes) -> ConfState:
    document = json.loads(stored)
    lists = (tuple(document.get(name, ())) for name in ("voters", "learners", "voters_outgoing", "learners_next"))
    voters, learners, outgoing, learners_next = lists
    return ConfState(voters, learners, outgoing, learners_next, document.get("auto_leave", False))
