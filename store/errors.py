"""Every error a client of the etcd v3 API can meet, with the status code and the exact text on the wire.

Clients match these texts byte for byte (contract: etcd_errors.tsv), so they live in one table and nowhere else.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """gRPC status codes, by the numbers of the wire. Kept apart from grpcio: the state machine needs no gRPC."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class EtcdError(Exception):
    """A definite refusal as etcd words it. Immutable in use: the constants below are shared; raise them anew
    with ``EtcdError.again`` only where a traceback matters."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message

    def again(self) -> EtcdError:
        """The same error as a new object, so that tracebacks and contexts of two raisers do not mix."""
        return EtcdError(self.code, self.message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EtcdError) and (self.code, self.message) == (other.code, other.message)

    def __hash__(self) -> int:
        return hash((self.code, self.message))


def _server(code: Code, text: str) -> EtcdError:
    return EtcdError(code, f"etcdserver: {text}")


# What the request itself gets wrong.
EMPTY_KEY: Final = _server(Code.INVALID_ARGUMENT, "key is not provided")
KEY_NOT_FOUND: Final = _server(Code.INVALID_ARGUMENT, "key not found")
VALUE_PROVIDED: Final = _server(Code.INVALID_ARGUMENT, "value is provided")
LEASE_PROVIDED: Final = _server(Code.INVALID_ARGUMENT, "lease is provided")
TOO_MANY_OPS: Final = _server(Code.INVALID_ARGUMENT, "too many operations in txn request")
DUPLICATE_KEY: Final = _server(Code.INVALID_ARGUMENT, "duplicate key given in txn request")
INVALID_CLIENT_API_VERSION: Final = _server(Code.INVALID_ARGUMENT, "invalid client api version")
INVALID_SORT_OPTION: Final = _server(Code.INVALID_ARGUMENT, "invalid sort option")
REQUEST_TOO_LARGE: Final = _server(Code.INVALID_ARGUMENT, "request is too large")
TOO_MANY_CHANGES: Final = _server(Code.INVALID_ARGUMENT, "too many changes in one revision")

# Revisions and space.
COMPACTED: Final = _server(Code.OUT_OF_RANGE, "mvcc: required revision has been compacted")
FUTURE_REVISION: Final = _server(Code.OUT_OF_RANGE, "mvcc: required revision is a future revision")
NO_SPACE: Final = _server(Code.RESOURCE_EXHAUSTED, "mvcc: database space exceeded")
CORRUPT: Final = _server(Code.DATA_LOSS, "corrupt cluster")

# Leases.
LEASE_NOT_FOUND: Final = _server(Code.NOT_FOUND, "requested lease not found")
LEASE_EXISTS: Final = _server(Code.FAILED_PRECONDITION, "lease already exists")
LEASE_TTL_TOO_LARGE: Final = _server(Code.OUT_OF_RANGE, "too large lease TTL")
NOT_PRIMARY_LESSOR: Final = EtcdError(Code.UNKNOWN, "not a primary lessor")

# Membership.
MEMBER_EXISTS: Final = _server(Code.FAILED_PRECONDITION, "member ID already exist")
PEER_URL_EXISTS: Final = _server(Code.FAILED_PRECONDITION, "Peer URLs already exists")
MEMBER_NOT_ENOUGH_STARTED: Final = _server(
    Code.UNKNOWN, "re-configuration failed due to not enough started members"
)
MEMBER_BAD_URLS: Final = _server(Code.INVALID_ARGUMENT, "given member URLs are invalid")
MEMBER_NOT_FOUND: Final = _server(Code.NOT_FOUND, "member not found")
MEMBER_NOT_LEARNER: Final = _server(Code.FAILED_PRECONDITION, "can only promote a learner member")
LEARNER_NOT_READY: Final = _server(
    Code.FAILED_PRECONDITION, "can only promote a learner member which is in sync with leader"
)
TOO_MANY_LEARNERS: Final = _server(Code.FAILED_PRECONDITION, "too many learner members in cluster")
NOT_SUPPORTED_FOR_LEARNER: Final = _server(Code.FAILED_PRECONDITION, "rpc not supported for learner")
BAD_LEADER_TRANSFEREE: Final = _server(Code.FAILED_PRECONDITION, "bad leader transferee")
CLUSTER_ID_MISMATCH: Final = _server(Code.FAILED_PRECONDITION, "cluster ID mismatch")

# Availability.
NO_LEADER: Final = _server(Code.UNAVAILABLE, "no leader")
NOT_LEADER: Final = _server(Code.FAILED_PRECONDITION, "not leader")
LEADER_CHANGED: Final = _server(Code.UNAVAILABLE, "leader changed")
NOT_CAPABLE: Final = _server(Code.FAILED_PRECONDITION, "not capable")
STOPPED: Final = _server(Code.UNAVAILABLE, "server stopped")
TIMEOUT: Final = _server(Code.UNAVAILABLE, "request timed out")
TIMEOUT_LEADER_FAILURE: Final = _server(
    Code.UNAVAILABLE, "request timed out, possibly due to previous leader failure"
)
TIMEOUT_CONNECTION_LOST: Final = _server(Code.UNAVAILABLE, "request timed out, possibly due to connection lost")
TIMEOUT_APPLIED_INDEX: Final = _server(
    Code.UNAVAILABLE, "request timed out, waiting for the applied index took too long"
)
TIMEOUT_LEADER_TRANSFER: Final = _server(Code.UNKNOWN, "request timed out, leader transfer took too long")
PROPOSAL_DROPPED: Final = EtcdError(Code.UNKNOWN, "raft proposal dropped")
DEADLINE_EXCEEDED: Final = EtcdError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
UNHEALTHY: Final = _server(Code.UNAVAILABLE, "unhealthy cluster")
TOO_MANY_REQUESTS: Final = _server(Code.UNKNOWN, "too many requests")
WATCH_CANCELED: Final = _server(Code.CANCELLED, "watch canceled")

# Downgrade.
UNKNOWN_METHOD: Final = _server(Code.UNKNOWN, "unknown method")
WRONG_DOWNGRADE_VERSION_FORMAT: Final = _server(Code.INVALID_ARGUMENT, "wrong downgrade target version format")
INVALID_DOWNGRADE_TARGET: Final = _server(Code.INVALID_ARGUMENT, "invalid downgrade target version")
NO_INFLIGHT_DOWNGRADE: Final = _server(Code.FAILED_PRECONDITION, "no inflight downgrade job")

# Authentication.
ROOT_USER_NOT_EXIST: Final = _server(Code.FAILED_PRECONDITION, "root user does not exist")
ROOT_ROLE_NOT_EXIST: Final = _server(Code.FAILED_PRECONDITION, "root user does not have root role")
USER_ALREADY_EXISTS: Final = _server(Code.FAILED_PRECONDITION, "user name already exists")
USER_EMPTY: Final = _server(Code.INVALID_ARGUMENT, "user name is empty")
USER_NOT_FOUND: Final = _server(Code.FAILED_PRECONDITION, "user name not found")
ROLE_ALREADY_EXISTS: Final = _server(Code.FAILED_PRECONDITION, "role name already exists")
ROLE_NOT_FOUND: Final = _server(Code.FAILED_PRECONDITION, "role name not found")
ROLE_EMPTY: Final = _server(Code.INVALID_ARGUMENT, "role name is empty")
AUTH_FAILED: Final = _server(Code.INVALID_ARGUMENT, "authentication failed, invalid user ID or password")
PERMISSION_NOT_GIVEN: Final = _server(Code.INVALID_ARGUMENT, "permission not given")
PERMISSION_DENIED: Final = _server(Code.PERMISSION_DENIED, "permission denied")
ROLE_NOT_GRANTED: Final = _server(Code.FAILED_PRECONDITION, "role is not granted to the user")
PERMISSION_NOT_GRANTED: Final = _server(Code.FAILED_PRECONDITION, "permission is not granted to the role")
AUTH_NOT_ENABLED: Final = _server(Code.FAILED_PRECONDITION, "authentication is not enabled")
INVALID_AUTH_TOKEN: Final = _server(Code.UNAUTHENTICATED, "invalid auth token")
INVALID_AUTH_MGMT: Final = _server(Code.INVALID_ARGUMENT, "invalid auth management")
AUTH_OLD_REVISION: Final = _server(Code.INVALID_ARGUMENT, "revision of auth store is old")
NO_PASSWORD_USER: Final = EtcdError(
    Code.UNKNOWN, "auth: authentication failed, password was given for no password user"
)


def unimplemented(text: str) -> EtcdError:
    """An RPC (or an option of one) this server does not offer."""
    return EtcdError(Code.UNIMPLEMENTED, text)
