"""The Maintenance service (contract §8 Status, §9)."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from store.api.context import CLUSTER_VERSION, CLUSTER_VERSION_TEXT, STORAGE_VERSION, VERSION, ApiContext
from store.api.snapshot import snapshot_parts
from store.apply import AlarmResult
from store.errors import (
    INVALID_DOWNGRADE_TARGET,
    NO_INFLIGHT_DOWNGRADE,
    NO_LEADER,
    UNKNOWN_METHOD,
    WRONG_DOWNGRADE_VERSION_FORMAT,
    unimplemented,
)
from store.etcdpb import internal_pb2, rpc_pb2

_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)?")

_ALARM_NAMES: Final[dict[int, str]] = {number: name for name, number in rpc_pb2.AlarmType.items()}


class MaintenanceServicer:
    def __init__(self, api: ApiContext) -> None:
        self._api = api

    async def Alarm(self, request: rpc_pb2.AlarmRequest, _context: object) -> rpc_pb2.AlarmResponse:
        command = internal_pb2.InternalRequest(alarm=request)
        result = cast(AlarmResult, await self._api.propose(command))
        return rpc_pb2.AlarmResponse(header=self._api.header(), alarms=[_alarm(*alarm) for alarm in result.alarms])

    async def Status(self, request: rpc_pb2.StatusRequest, _context: object) -> rpc_pb2.StatusResponse:
        """Answered without a leader."""
        replica, machine = self._api.replica, self._api.machine
        sizes = machine.sizes
        return rpc_pb2.StatusResponse(
            header=self._api.header(),
            version=VERSION,
            dbSize=sizes.total,
            dbSizeInUse=sizes.in_use,
            leader=replica.leader_id,
            raftIndex=replica.commit_index,
            raftTerm=replica.term,
            raftAppliedIndex=replica.applied_index,
            errors=self._errors(),
            isLearner=replica.is_learner,
            storageVersion=STORAGE_VERSION,
            dbSizeQuota=max(0, self._api.options.effective_quota_bytes),
            downgradeInfo=rpc_pb2.DowngradeInfo(),
        )

    def _errors(self) -> list[str]:
        errors = [] if self._api.replica.leader_id else [NO_LEADER.message]
        for member_id, kind in sorted(self._api.machine.state.alarms):
            # The text form of the message in etcd 3.5, trailing space included.
            errors.append(f"memberID:{member_id} alarm:{_ALARM_NAMES.get(kind, kind)} ")
        return errors

    async def Defragment(self, request: rpc_pb2.DefragmentRequest, _context: object) -> rpc_pb2.DefragmentResponse:
        await self._api.machine.defragment()
        return rpc_pb2.DefragmentResponse()

    async def Hash(self, request: rpc_pb2.HashRequest, _context: object) -> rpc_pb2.HashResponse:
        crc = await self._api.machine.hash_all()
        return rpc_pb2.HashResponse(header=self._api.header(), hash=crc)

    async def HashKV(self, request: rpc_pb2.HashKVRequest, _context: object) -> rpc_pb2.HashKVResponse:
        crc, compact_revision, revision = await self._api.machine.hash_kv(request.revision)
        return rpc_pb2.HashKVResponse(
            header=self._api.header(), hash=crc, compact_revision=compact_revision, hash_revision=revision
        )

    async def Snapshot(self, request: rpc_pb2.SnapshotRequest, context: Any) -> None:
        async for part in snapshot_parts(self._api.machine):
            await context.write(part)

    async def MoveLeader(self, request: rpc_pb2.MoveLeaderRequest, _context: object) -> rpc_pb2.MoveLeaderResponse:
        await self._api.reconfigure.move_leader(request.targetID)
        return rpc_pb2.MoveLeaderResponse()

    async def Downgrade(self, request: rpc_pb2.DowngradeRequest, _context: object) -> rpc_pb2.DowngradeResponse:
        """Validates as etcd does; none can begin, so none can be cancelled."""
        await self._api.read_barrier()
        if request.action == rpc_pb2.DowngradeRequest.CANCEL:
            raise NO_INFLIGHT_DOWNGRADE.again()
        if request.action not in (rpc_pb2.DowngradeRequest.VALIDATE, rpc_pb2.DowngradeRequest.ENABLE):
            raise UNKNOWN_METHOD.again()
        if downgrade_target(request.version) != (CLUSTER_VERSION[0], CLUSTER_VERSION[1] - 1):
            raise INVALID_DOWNGRADE_TARGET.again()
        if request.action == rpc_pb2.DowngradeRequest.ENABLE:
            raise unimplemented("kvorum: there is no older release of Kvorum to downgrade to")
        return rpc_pb2.DowngradeResponse(header=self._api.header(), version=CLUSTER_VERSION_TEXT)


def downgrade_target(version: str) -> tuple[int, int]:
    """Major and minor of ``3.4`` or ``3.4.2``. Raises WRONG_DOWNGRADE_VERSION_FORMAT."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise WRONG_DOWNGRADE_VERSION_FORMAT.again()
    return int(match[1]), int(match[2])


def _alarm(member_id: int, kind: int) -> rpc_pb2.AlarmMember:
    alarm = rpc_pb2.AlarmMember(memberID=member_id)
    alarm.alarm = kind  # type: ignore[assignment]  # any number travels through an open enum
    return alarm
