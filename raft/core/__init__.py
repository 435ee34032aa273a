"""The consensus protocol without input or output: messages and ticks in, a ``Ready`` out.

Standard library only: no event loop, no clock, no disk, no unseeded randomness. See ``docs/raft.md``.
"""

from __future__ import annotations

from .confchange import as_v2, leaves_joint
from .confchange import decode as decode_conf_change
from .confchange import encode as encode_conf_change
from .config import Config
from .errors import (
    CallerError,
    Compacted,
    ConfChangeError,
    ConfChangeProblem,
    ConfigError,
    DropReason,
    FaultError,
    InvariantViolation,
    MalformedMessage,
    NotReadyToAdvance,
    ProposalDropped,
    RaftError,
    SnapshotOutOfDate,
    SnapshotTemporarilyUnavailable,
    StepLocalMessage,
    StepPeerNotFound,
    Unavailable,
)
from .rawnode import LOCAL_TYPES, RESPONSE_TYPES, RawNode
from .readonly import ReadOnlyOption
from .sizes import NO_LIMIT, entries_size, limit_size, payload_size
from .status import PeerStatus, Status
from .storage import MemoryStorage, Storage
from .trace import TraceCallback, TraceEvent
from .tracker import ProgressState
from .types import (
    APPEND_THREAD,
    APPLY_THREAD,
    EMPTY_HARD_STATE,
    NO_NODE,
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    ReadState,
    Ready,
    RefusedConfChange,
    Role,
    Snapshot,
    SoftState,
)

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "EMPTY_HARD_STATE",
    "LOCAL_TYPES",
    "NO_LIMIT",
    "NO_NODE",
    "RESPONSE_TYPES",
    "CallerError",
    "Compacted",
    "ConfChange",
    "ConfChangeError",
    "ConfChangeProblem",
    "ConfChangeTransition",
    "ConfChangeType",
    "ConfChangeV2",
    "ConfState",
    "Config",
    "ConfigError",
    "DropReason",
    "Entry",
    "EntryType",
    "FaultError",
    "HardState",
    "InvariantViolation",
    "MalformedMessage",
    "MemoryStorage",
    "Message",
    "MessageType",
    "NotReadyToAdvance",
    "PeerStatus",
    "ProgressState",
    "ProposalDropped",
    "RaftError",
    "RawNode",
    "ReadOnlyOption",
    "ReadState",
    "Ready",
    "RefusedConfChange",
    "Role",
    "Snapshot",
    "SnapshotOutOfDate",
    "SnapshotTemporarilyUnavailable",
    "SoftState",
    "Status",
    "StepLocalMessage",
    "StepPeerNotFound",
    "Storage",
    "TraceCallback",
    "TraceEvent",
    "Unavailable",
    "as_v2",
    "decode_conf_change",
    "encode_conf_change",
    "entries_size",
    "leaves_joint",
    "limit_size",
    "payload_size",
]
