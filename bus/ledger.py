"""Ledger commits: compare-and-set on one node, or on several keys at once.

Every answer is definite. The server checks the expectation before it looks for duplicates, so a message id would not
help here: a publish that went unconfirmed is sent again unchanged until the server says either that it is
stored or that the node has moved on; in the second case the first record behind the expected sequence tells whether the
one that moved it was ours.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Final

import msgspec
import nats.errors

from bus.codec import decode_as
from bus.connection import Bus
from bus.errors import ApiError, ConflictError, PublishUnconfirmedError, UndecodableError
from bus.publisher import WRONG_LAST_SEQUENCE
from bus.stored import find
from bus.streams import LEDGER

MOST_WRITES: Final = 1000
"""Records that the server takes in one batch."""

TOO_MANY_BATCHES: Final = 10210
"""``err_code``: other writers have more batches open than the server keeps; the same one may succeed in a moment."""


class Write(msgspec.Struct, frozen=True):
    """One record of an atomic commit; ``expected`` is the sequence it replaces, 0 for none, None for whatever is there."""

    subject: str
    payload: bytes
    expected: int | None


class _Signed(msgspec.Struct):
    """What every record of the ledger has."""

    txn: str


class _BatchError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _BatchAck(msgspec.Struct):
    seq: int = 0
    error: _BatchError | None = None


_batch_ack = msgspec.json.Decoder(_BatchAck)


async def commit(
    bus: Bus, subject: str, payload: bytes, *, txn: str, expected: int, epoch: int | None = None, timeout: float = 60.0
) -> int:
    """Replace the record at ``expected`` and return the sequence of the new one.

    Args:
        bus: The connection.
        subject: The key, such as ``gpubus.ledger.node.<node>``.
        payload: The encoded record event; the record inside carries ``txn``.
        txn: Identity of this commit.
        expected: Sequence of the record it replaces; 0 when the key has none.
        epoch: Write over the connection of this epoch only. After a lost connection others may have been given the same
            work, and once they have read the ledger nothing of ours may appear in it any more.
        timeout: Seconds to keep trying for a definite answer.

    Raises:
        ConflictError: Somebody else replaced the record first. Nothing of ours was or will be written.
        PublishUnconfirmedError: No definite answer within ``timeout`` or the epoch; only then is the outcome open.
    """
    try:
        ack = await bus.publisher.publish(subject, payload, expected=expected, epoch=epoch, timeout=timeout)
    except ConflictError as conflict:
        if conflict.ambiguous and (seq := await _landed(bus, subject, txn, expected)):
            return seq
        raise
    return ack.seq


async def _landed(bus: Bus, subject: str, txn: str, expected: int) -> int:
    """Return the sequence at which ``txn`` replaced ``expected``, or 0 if another record did.

    Raises:
        PublishUnconfirmedError: The server cannot say just now.
    """
    try:
        message = await find(bus, LEDGER, seq=expected + 1, next_by_subj=subject)
        return message.seq if message is not None and decode_as(_Signed, message.data).data.txn == txn else 0
    except UndecodableError:
        return 0
    except (ApiError, nats.errors.Error, OSError, TimeoutError) as error:
        raise PublishUnconfirmedError(subject, str(error) or type(error).__name__) from None


async def commit_all(bus: Bus, writes: Sequence[Write], *, epoch: int | None = None, timeout: float = 10.0) -> int:
    """Write all records or none, as one JetStream atomic batch; return the sequence of the first.

    The i-th record gets that sequence plus i. On a single-server file store every batch costs an fsync, so put many
    changes in one (at most :data:`MOST_WRITES` records).

    Args:
        bus: The connection.
        writes: The records, in the order in which they will stand in the stream.
        epoch: Write over the connection of this epoch only; see :func:`commit`.
        timeout: Seconds to wait for the answer.

    Raises:
        ConflictError: At least one expectation no longer holds; nothing was written.
        ApiError: The server refused the batch.
        PublishUnconfirmedError: No answer: read the keys again before deciding anew.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return await _batch(bus, writes, bus.epoch if epoch is None else epoch, deadline - time.monotonic())
        except ApiError as error:
            if error.err_code != TOO_MANY_BATCHES or time.monotonic() > deadline:
                raise
        await asyncio.sleep(random.uniform(0.005, 0.02))  # noqa: S311  jitter


async def _batch(bus: Bus, writes: Sequence[Write], epoch: int, timeout: float) -> int:
    batch = token_hex(16)
    client = bus.client
    last = writes[-1].subject
    try:
        for number, write in enumerate(writes, 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if write.expected is not None:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(write.expected)
            if bus.epoch != epoch:  # the server drops a batch that is never committed
                raise PublishUnconfirmedError(last, "the connection was lost")
            if number < len(writes):
                await client.publish(write.subject, write.payload, headers=headers)
            else:
                headers["Nats-Batch-Commit"] = "1"
                reply = await client.request(write.subject, write.payload, timeout=timeout, headers=headers)
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise PublishUnconfirmedError(last, str(error) or type(error).__name__) from None
    ack = _batch_ack.decode(reply.data)
    if ack.error is not None:
        if ack.error.err_code in WRONG_LAST_SEQUENCE:
            raise ConflictError(f"one of {len(writes)} records", None)
        raise ApiError("atomic batch", ack.error.code, ack.error.err_code, ack.error.description)
    return ack.seq - len(writes) + 1
