"""Everything that crosses the wire between ranks beside values: kinds of calls, frames, and their constants."""

from __future__ import annotations

import enum
import json
import struct
from typing import NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.engines.interface import CONTROL_TAGS
from treefold.errors import GroupError


class CallKind(enum.IntEnum):
    """The calls of a group, and the steps of calls, by the number that ranks compare."""

    ALL_REDUCE = 0
    WEIGHTED = 1
    #: The ranks tell each other the weights of a mean.
    WEIGHTS = 2
    REDUCE_SCATTER = 3
    BARRIER = 16
    BROADCAST = 17
    GATHER = 18
    #: Pieces of a stream of bytes.
    STREAM = 32
    #: The ranks announce the shapes and lengths that differ from rank to rank.
    ANNOUNCED = 33
    #: The ranks tell each other their exact sums.
    EXACT = 34
    #: The ranks tell each other what they are, as they connect.
    CONNECT = 253
    #: A rank has stopped, and says why.
    WORD = 254
    #: Every rank says that it has everything.
    VOTE = 255


#: Kind, op or axis, accumulation, root + 1 (0: none), and a hash of everything else that ranks compare.
_CALL = struct.Struct("<BBBxI16s")
#: Magic, sequence, call, whether it is refused, replicas, the plan's number, bytes of the description, and of the
#: payload.
_HEAD = struct.Struct("<4sQ24s?xxxIQII")
_MAGIC = b"tfd1"
#: What a frame has room for beside its head: of a call in words, and of a payload. A longer payload follows the frame.
MOST_DESCRIBED, FRAME_ROOM = 400, 16384
FRAME_BYTES = _HEAD.size + MOST_DESCRIBED + FRAME_ROOM
#: The tags of frames and of what follows them; values have those from ``VALUE_TAGS`` on.
FRAME_TAG, REST_TAG, VALUE_TAGS = 0, CONTROL_TAGS, CONTROL_TAGS + 1


def call_key(
    kind: CallKind, *, how: tuple[int, int] = (0, 0), root: int | None = None, digest: bytes = bytes(16)
) -> bytes:
    """Return the 24 bytes by which ranks compare a call. ``how``: op and accumulation, or an axis."""
    return _CALL.pack(kind, *how, 0 if root is None else root + 1, digest)


CONNECT, VOTE, _WORD = call_key(CallKind.CONNECT), call_key(CallKind.VOTE), call_key(CallKind.WORD)
#: The call of a rank that cannot make the call in which the others are.
REFUSED = bytes(_CALL.size)


class Frame(NamedTuple):
    """The message of a rank to all others in a round."""

    kind: bytes
    description: str
    payload: bytes = b""
    replicas: int = 0
    number: int = 0
    is_refused: bool = False

    def encode(self, sequence: int) -> bytes:
        """Return the frame of a round as it crosses the wire, with as much of the payload as it has room for."""
        description = self.description.encode(errors="replace")[:MOST_DESCRIBED]
        head = _HEAD.pack(
            _MAGIC,
            sequence,
            self.kind,
            self.is_refused,
            self.replicas,
            self.number,
            len(description),
            len(self.payload),
        )
        return head + description + self.payload[:FRAME_ROOM]

    @staticmethod
    def decode(buffer: HostArray, sequence: int) -> tuple[Frame, int]:
        """Return a rank's frame of a round, with what stands in it of the payload, and how long that is.

        Raises:
            GroupError: it is none, or one of another round: a peer that is a call ahead would be misread.

        """
        head = _HEAD.unpack(buffer[: _HEAD.size].tobytes())
        magic, said, kind, is_refused, replicas, number, description_bytes, payload_bytes = head
        if magic != _MAGIC or said != sequence or description_bytes > MOST_DESCRIBED:
            raise GroupError(
                "Another rank sent what does not belong to this call. Install the same treefold on all ranks, and let "
                "nobody else use the channel of this group."
            )
        start = _HEAD.size + description_bytes
        description = buffer[_HEAD.size : start].tobytes().decode(errors="replace")
        payload = buffer[start : start + min(payload_bytes, FRAME_ROOM)].tobytes()
        return Frame(kind, description, payload, replicas, number, is_refused), payload_bytes


#: Why a rank stops: ``lost`` because of other ranks, which it names; ``late`` because its deadline has passed. The
#: other words, ``failed``, ``interrupted`` and ``left``, are reasons of its own.
LOST, LATE = "lost", "late"


class Word(NamedTuple):
    """The last message of a rank that stops: why, and with ``lost`` which ranks it misses."""

    cause: str
    ranks: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return it as it crosses the wire."""
        return json.dumps([self.cause, self.ranks]).encode()

    def frame(self) -> Frame:
        """Return the frame that a rank tells in place of its next one."""
        return Frame(_WORD, self.cause, self.encode())

    @staticmethod
    def decode(said: bytes) -> Word:
        """Read what another rank has said."""
        cause, ranks = json.loads(said)
        return Word(cause, tuple(ranks))

    @staticmethod
    def in_frame(buffer: HostArray) -> Word | None:
        """Return the word that has come in place of a frame, of whatever round; None if it is none."""
        head = _HEAD.unpack(buffer[: _HEAD.size].tobytes())
        if head[0] != _MAGIC or head[2] != _WORD:
            return None
        start = _HEAD.size + head[6]
        return Word.decode(buffer[start : start + head[7]].tobytes())


def frame_bytes(frame: Frame, sequence: int) -> HostArray:
    """Return a frame as an array that an engine can send."""
    # Copied, because PyTorch warns of read-only arrays; the transfers hold it until all have received it.
    return np.frombuffer(frame.encode(sequence), np.uint8).copy()
