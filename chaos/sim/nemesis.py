"""Carries out the plan: what each kind of fault does, within what a cluster must survive.

At most a minority of the voters ever loses its disk for good. Everything else may happen to everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from chaos.disk import flip_bit
from chaos.sim.plan import Fault
from raft.core.types import ConfChange, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState
from raft.errors import OutcomeUnknown, RaftError
from store.cluster import ChangeKind, ClusterError, MemberChange

if TYPE_CHECKING:
    from chaos.sim.member import Member, Process
    from chaos.sim.world import World

VOTERS_MAX: Final = 5
CRASH_STEPS: Final = 40
"""A crash comes up to so many callbacks after its moment: in the middle of something."""


class Nemesis:
    """One per run. ``do`` carries out one fault."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.changes_under_way = 0
        """Membership changes whose outcome is not known, or never will be."""
        self.active = True
        self._kinds: dict[str, Callable[[Fault], str]] = {
            "crash": self._crash,
            "pause": self._pause,
            "slow": self._slow,
            "partition": self._partition,
            "cut": self._cut,
            "clog": self._clog,
            "wipe": self._wipe,
            "fail-sync": self._fail_sync,
            "stall": self._stall,
            "bit-flip": self._bit_flip,
            "wall-jump": self._wall_jump,
            "member-change": self._member_change,
            "joint-change": self._joint_change,
            "transfer": self._transfer,
            "campaign": self._campaign,
            "depose": self._depose,
        }

    def do(self, fault: Fault) -> None:
        """Carry out one fault; does nothing where it does not apply now."""
        if not self.active:
            return
        what = self._kinds[fault.kind](fault)
        if what:
            self._world.trace.add(0, "fault", f"{fault.kind}: {what}")
            self._world.trace.situation(f"fault: {fault.kind}")

    # -- choosing -----------------------------------------------------------------------------------------

    def _members(self) -> list[Member]:
        return [member for member in self._world.members.values() if not member.removed]

    def _member(self, where: float) -> Member:
        members = self._members()
        return members[int(where * len(members))]

    def _process(self, where: float) -> Process | None:
        return self._member(where).process

    def _leader(self) -> Process | None:
        return self._world.leader()

    # -- processes ----------------------------------------------------------------------------------------

    def _crash(self, fault: Fault) -> str:
        world = self._world
        power_loss = fault.size < world.options.power_loss
        if fault.other < 0.1:
            for member in self._members():
                world.crash(member, power_loss=power_loss)
            return "all members"
        leader = self._leader()
        member = leader.member if leader is not None and fault.other < 0.4 else self._member(fault.where)
        if member.process is None:
            return ""
        member.process.crash_after(int(fault.size * CRASH_STEPS), power_loss=power_loss)
        return f"m{member.id} " + ("loses power" if power_loss else "is killed")

    def _pause(self, fault: Fault) -> str:
        process = self._process(fault.where)
        if process is None or process.host.paused:
            return ""
        seconds = fault.size * 4 * self._world.options.election_s
        process.host.paused = True
        self._world.later(seconds, lambda: self._world.loop.resume(process.host))
        return f"m{process.member.id} for {seconds:.2f} s"

    def _slow(self, fault: Fault) -> str:
        """A process that gets little of its processor: it stops and goes."""
        process = self._process(fault.where)
        if process is None:
            return ""
        pause_s, times = 0.02 + 0.2 * fault.other, 5 + int(10 * fault.size)

        def stop(left: int) -> None:
            if self.active and process.serving and not process.host.paused:
                process.host.paused = True
                self._world.later(pause_s, lambda: go(left))

        def go(left: int) -> None:
            self._world.loop.resume(process.host)
            if left:
                self._world.later(pause_s / 4, lambda: stop(left - 1))

        stop(times)
        return f"m{process.member.id} in steps of {pause_s:.2f} s"

    def _wall_jump(self, fault: Fault) -> str:
        member = self._member(fault.where)
        jump_s = (fault.size - 0.5) * 10.0
        member.wall_offset_s += jump_s
        if member.process is not None:
            member.process.host.wall_offset_s = member.wall_offset_s
        return f"m{member.id} by {jump_s:+.1f} s"

    # -- network ------------------------------------------------------------------------------------------

    def _partition(self, fault: Fault) -> str:
        """Symmetric halves, one way, a bridge that sees both sides, the leader alone, or one lost direction."""
        network, ids = self._world.network, [member.id for member in self._members()]
        if len(ids) < 2:
            return ""
        at = int(fault.where * len(ids))
        ids = ids[at:] + ids[:at]
        left, right = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        kind = ("halves", "one way", "bridge", "leader alone", "one direction")[int(fault.other * 5)]
        leader = self._leader()
        if kind == "bridge" and len(ids) > 2:
            left, right = ids[1 : 1 + len(ids) // 2], ids[1 + len(ids) // 2 :]
        elif kind == "leader alone" and leader is not None:
            left, right = [leader.member.id], [number for number in ids if number != leader.member.id]
        elif kind == "one direction":
            left, right = ids[:1], ids[1:2]
        links = [(a, b) for a in left for b in right]
        if kind not in ("one way", "one direction"):
            links += [(b, a) for a, b in links]
        for link in links:
            network.block(*link)
        seconds = (0.3 + 4 * fault.size) * self._world.options.election_s
        self._world.later(seconds, lambda: self._heal(links))
        return f"{kind}, {left} from {right} for {seconds:.2f} s"

    def _depose(self, fault: Fault) -> str:
        """A leader alone collects entries that nobody else has; as it comes back, its successor crashes. Whoever
        compares logs wrongly then elects the longer one."""
        world, leader = self._world, self._leader()
        if leader is None or len(world.members) < 3:
            return ""
        old = leader.member.id
        others = [member.id for member in self._members() if member.id != old]
        links = [link for other in others for link in ((old, other), (other, old))]
        for link in links:
            world.network.block(*link)
        world.burst(old, 2 + int(6 * fault.size))
        seconds = (2.0 + 2.0 * fault.other) * world.options.election_s

        def back() -> None:
            successor = self._leader()
            self._heal(links)
            if self.active and successor is not None and successor.member.id != old:
                world.crash(successor.member, power_loss=False)

        world.later(seconds, back)
        return f"m{old} for {seconds:.2f} s"

    def _heal(self, links: Sequence[tuple[int, int]]) -> None:
        if self.active:
            for link in links:
                self._world.network.heal_link(*link)
            self._world.trace.add(0, "heal", " ".join(f"{a}>{b}" for a, b in links))

    def _link(self, fault: Fault) -> tuple[int, int] | None:
        ids = [member.id for member in self._members()]
        if len(ids) < 2:
            return None
        sender = ids.pop(int(fault.where * len(ids)))
        return sender, ids[int(fault.other * len(ids))]

    def _cut(self, fault: Fault) -> str:
        link = self._link(fault)
        if link is None:
            return ""
        self._world.network.cut(*link)
        return f"stream {link[0]} to {link[1]}"

    def _clog(self, fault: Fault) -> str:
        """Links close one by one and open one by one, and what they held arrives late."""
        link = self._link(fault)
        if link is None:
            return ""
        seconds = 3 * fault.size * self._world.options.election_s
        self._world.network.clog(*link)
        self._world.later(seconds, lambda: self._world.network.unclog(*link))
        return f"{link[0]} to {link[1]} for {seconds:.2f} s"

    # -- disks --------------------------------------------------------------------------------------------

    def _fail_sync(self, fault: Fault) -> str:
        process = self._process(fault.where)
        if process is None:
            return ""
        process.member.log_disk.fail_syncs = True
        return f"m{process.member.id}"

    def _stall(self, fault: Fault) -> str:
        process = self._process(fault.where)
        if process is None or process.member.log_disk.stall is not None:
            return ""
        disk, gate = process.member.log_disk, asyncio.Event()
        seconds = 4 * fault.size * self._world.options.election_s
        disk.stall = gate

        def go() -> None:
            disk.stall = None
            gate.set()

        self._world.later(seconds, go)
        return f"m{process.member.id} for {seconds:.2f} s"

    def _wipe(self, fault: Fault) -> str:
        """A member's disk is gone; it may only come back as a new one."""
        member = self._member(fault.where)
        if not self._may_lose(member):
            return ""
        self._world.lose(member)
        return f"m{member.id}"

    def _bit_flip(self, fault: Fault) -> str:
        """A bit of a stopped member's log turns. It must refuse to start on it, or have lost nothing by it."""
        member = self._member(fault.where)
        if not self._may_lose(member):
            return ""
        self._world.crash(member, power_loss=False, restart=False)
        if not flip_bit(member.log_disk, fault.other):
            self._world.restart_later(member)
            return ""
        member.lost = True
        self._world.restart_later(member)
        return f"m{member.id}"

    def _may_lose(self, member: Member) -> bool:
        return not self.changes_under_way and not member.lost and self._world.config_is_safe(without=member.id)

    # -- operators ----------------------------------------------------------------------------------------

    def _transfer(self, fault: Fault) -> str:
        leader = self._leader()
        if leader is None:
            return ""
        target = self._member(fault.where).id
        leader.host.context.copy().run(leader.driver.transfer_leader, target)
        return f"m{leader.member.id} to m{target}"

    def _campaign(self, fault: Fault) -> str:
        process = self._process(fault.where)
        if process is None or not process.serving:
            return ""
        process.host.context.copy().run(process.driver.campaign)
        return f"m{process.member.id}"

    def _member_change(self, fault: Fault) -> str:
        leader, config = self._leader(), self._world.config
        if leader is None or config.voters_outgoing:
            return ""
        change = self._change(fault, config)
        if change is None:
            return ""
        if change.kind is ChangeKind.ADD:
            self._world.add_member(change.id)
        self._propose(leader, change.conf_change())
        return f"{change.kind.name.lower()} m{change.id}" + (" as learner" if change.is_learner else "")

    def _change(self, fault: Fault, config: ConfState) -> MemberChange | None:
        world = self._world
        lost = [number for number in config.voters if world.members[number].lost]
        if lost:
            return self._if_safe(config, MemberChange(ChangeKind.REMOVE, lost[0]))
        if fault.other < 0.35 and len(config.voters) > 1:
            target = config.voters[int(fault.where * len(config.voters))]
            if self._is_leader_of_two(target, config):
                return None
            return self._if_safe(config, MemberChange(ChangeKind.REMOVE, target))
        if fault.other < 0.6 and config.learners:
            return self._if_safe(config, MemberChange(ChangeKind.PROMOTE, config.learners[0]))
        if len(config.voters) + len(config.learners) < VOTERS_MAX:
            number = world.next_id()
            url = f"http://10.0.0.{number}:2380"
            return self._if_safe(config, MemberChange(ChangeKind.ADD, number, (url,), is_learner=fault.size < 0.5))
        return None

    def _is_leader_of_two(self, number: int, config: ConfState) -> bool:
        """No operator removes it: the other may need its vote, and it votes only for a log as long as its own."""
        leader = self._leader()
        return len(config.voters) == 2 and leader is not None and number == leader.member.id

    def _if_safe(self, config: ConfState, change: MemberChange) -> MemberChange | None:
        voters = set(config.voters)
        if change.kind is ChangeKind.REMOVE:
            voters.discard(change.id)
        elif not change.is_learner:
            voters.add(change.id)
        return change if self._has_majority(voters) else None

    def _has_majority(self, voters: set[int]) -> bool:
        known = self._world.members
        healthy = [number for number in voters if number not in known or not known[number].lost]
        return len(healthy) > len(voters) // 2

    def _joint_change(self, fault: Fault) -> str:
        """Several changes at once, through a joint configuration."""
        leader, config = self._leader(), self._world.config
        if leader is None:
            return ""
        if config.voters_outgoing:
            if config.auto_leave:
                return ""
            self._propose(leader, ConfChangeV2())
            return "leave"
        if len(config.voters) < 2:
            return ""
        out = config.voters[int(fault.where * len(config.voters))]
        if self._is_leader_of_two(out, config):
            return ""
        number = self._world.next_id()
        voters = {*config.voters, number} - {out}
        if not self._has_majority(voters) or not self._has_majority(set(config.voters)):
            return ""
        transition = (
            ConfChangeTransition.JOINT_IMPLICIT if fault.other < 0.6 else ConfChangeTransition.JOINT_EXPLICIT
        )
        self._world.add_member(number)
        changes = (ConfChange(ConfChangeType.ADD_VOTER, number), ConfChange(ConfChangeType.REMOVE, out))
        self._propose(leader, ConfChangeV2(changes, transition))
        return f"m{number} for m{out}"

    def leave_joint(self, leader: Process) -> None:
        """What an operator does who entered a joint configuration explicitly."""
        self._propose(leader, ConfChangeV2())

    def _propose(self, leader: Process, change: ConfChangeV2) -> None:
        self.changes_under_way += 1
        leader.serve(lambda: self._change_config(leader, change), "change-config")

    async def _change_config(self, leader: Process, change: ConfChangeV2) -> None:
        """Only a definite outcome makes the next loss of a disk possible."""
        try:
            await leader.driver.propose_conf_change(change)
        except OutcomeUnknown:
            return
        except (RaftError, ClusterError):
            self._world.trace.situation("membership change refused")
        else:
            self._world.trace.situation("membership changed")
        if leader.port.alive:
            self.changes_under_way -= 1
