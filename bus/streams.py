"""The streams, declared in one place and created or updated idempotently by whoever starts first.

Every stream has ``max_bytes``: a full disk stops the whole server, a full stream only itself. LEDGER refuses new messages
when full (an allocation that is not written must not happen), and so does WORK, whose commands are owed to somebody; the
others drop their oldest. Timers have a stream of their own because the server allows schedules only where old messages
may be dropped.
"""

import asyncio
import logging
import time
from typing import Any, Final

import msgspec
import nats.errors
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamSource, SubjectTransform

from bus.connection import Bus
from bus.errors import ApiError, BusError

log = logging.getLogger("gpubus.bus")

STATE: Final = "STATE"
LEDGER: Final = "LEDGER"
DECISION: Final = "DECISION"
JOURNAL: Final = "JOURNAL"
HISTORY: Final = "HISTORY"
USAGE: Final = "USAGE"
WORK: Final = "WORK"
TICK: Final = "TICK"
CAPACITY: Final = "CAPACITY"
ALERT: Final = "ALERT"
SHADOW: Final = "SHADOW"
DEAD: Final = "DEAD"

MIB: Final = 1024**2
GIB: Final = 1024**3
DAY_S: Final = 86_400

HISTORY_KINDS: Final = ("pool", "expected", "node", "gpu", "quota", "waiting")
"""What of STATE is kept when it is replaced. Pods are left out: most of what STATE says is about them, and decisions tell."""

TOMBSTONE_TTL_S: Final = 3600
"""How long the mark of a deleted object stays. A follower that was away for longer loads everything anew."""

DEDUPE_WINDOW_S: Final = 120


class StreamLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator may set: replicas (1 or 3), how much each stream may hold, in bytes, and how much history.

    Attributes:
        ledger_revisions: Records kept per node; -1 keeps all, so that the whole history can be audited.
    """

    replicas: int = 1
    ledger_revisions: int = 1000
    state_bytes: int = 2 * GIB
    ledger_bytes: int = 8 * GIB
    decision_bytes: int = 8 * GIB
    journal_bytes: int = 4 * GIB
    history_bytes: int = 4 * GIB
    usage_bytes: int = 2 * GIB
    work_bytes: int = 2 * GIB
    tick_bytes: int = 64 * MIB
    capacity_bytes: int = GIB
    alert_bytes: int = GIB
    dead_bytes: int = GIB
    shadow_bytes: int = GIB


def declarations(limits: StreamLimits) -> tuple[StreamConfig, ...]:
    """Return the configuration of every stream."""

    def stream(name: str, subjects: list[str], max_bytes: int, **options: object) -> StreamConfig:
        return StreamConfig(
            name=name,
            subjects=subjects,
            storage=StorageType.FILE,
            num_replicas=limits.replicas,
            max_bytes=max_bytes,
            duplicate_window=DEDUPE_WINDOW_S,
            allow_direct=True,
            **{"retention": RetentionPolicy.LIMITS, **options},  # type: ignore[arg-type]
        )

    return (
        stream(
            STATE,
            ["gpubus.state.>"],
            limits.state_bytes,
            # One message per subject, so that an expired tombstone uncovers nothing older. Purging the older ones with a
            # roll-up instead costs the server a walk through the stream, over a millisecond each with many objects.
            max_msgs_per_subject=1,
            discard=DiscardPolicy.OLD,
            allow_msg_ttl=True,
        ),
        stream(
            HISTORY,
            [],
            limits.history_bytes,
            # Republishing would not do: tombstones would bring their TTL along, and with it expire here too. A mirror would
            # answer direct reads of STATE with what is history.
            sources=[
                StreamSource(
                    name=STATE,
                    subject_transforms=[SubjectTransform(f"gpubus.state.{kind}.>", "") for kind in HISTORY_KINDS],
                )
            ],
            max_age=30 * DAY_S,
            discard=DiscardPolicy.OLD,
        ),
        stream(
            LEDGER,
            ["gpubus.ledger.>"],
            limits.ledger_bytes,
            max_msgs_per_subject=limits.ledger_revisions,
            discard=DiscardPolicy.NEW,
            allow_atomic=True,
            allow_msg_ttl=True,
        ),
        stream(
            DECISION,
            ["gpubus.decision.>"],
            limits.decision_bytes,
            max_msgs_per_subject=100,
            max_age=30 * DAY_S,
            discard=DiscardPolicy.OLD,
        ),
        stream(JOURNAL, ["gpubus.journal.>"], limits.journal_bytes, max_age=30 * DAY_S, discard=DiscardPolicy.OLD),
        stream(USAGE, ["gpubus.usage.>"], limits.usage_bytes, max_age=3600, discard=DiscardPolicy.OLD),
        stream(
            WORK,
            ["gpubus.work.schedule.>", "gpubus.work.release.>", "gpubus.work.evict.>"],
            limits.work_bytes,
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
        ),
        stream(
            TICK,
            ["gpubus.work.tick.>", "gpubus.timer.>"],
            limits.tick_bytes,
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.OLD,
            allow_msg_ttl=True,
            allow_msg_schedules=True,
            allow_rollup_hdrs=True,
        ),
        stream(
            CAPACITY,
            ["gpubus.capacity.>", "gpubus.drift.>", "gpubus.notice.>"],
            limits.capacity_bytes,
            max_age=7 * DAY_S,
            max_msgs_per_subject=100,
            discard=DiscardPolicy.OLD,
        ),
        stream(ALERT, ["gpubus.alert.>"], limits.alert_bytes, max_age=7 * DAY_S, discard=DiscardPolicy.OLD),
        stream(
            SHADOW,
            ["gpubus.shadow.>"],
            limits.shadow_bytes,
            max_msgs_per_subject=10,
            max_age=7 * DAY_S,
            discard=DiscardPolicy.OLD,
        ),
        stream(DEAD, ["gpubus.dead.>"], limits.dead_bytes, max_age=30 * DAY_S, discard=DiscardPolicy.OLD),
    )


class StreamState(msgspec.Struct):
    """The part of a stream's state that readers need. Amounts in messages and bytes."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class StreamOptions(msgspec.Struct, frozen=True):
    """The part of a stream's configuration that readers need."""

    retention: str = ""
    max_msgs_per_subject: int = -1


class StreamInfo(msgspec.Struct):
    """Identity and extent of a stream; ``created`` changes when a stream is deleted and made again."""

    created: str
    state: StreamState
    config: StreamOptions = StreamOptions()

    @property
    def is_queue(self) -> bool:
        """Whether whoever reads a message takes it from all others."""
        return self.config.retention == RetentionPolicy.WORK_QUEUE.value


class _Configured(msgspec.Struct):
    config: dict[str, Any]


_info_decoder = msgspec.json.Decoder(StreamInfo)
_configured = msgspec.json.Decoder(_Configured)


async def stream_info(bus: Bus, name: str) -> StreamInfo:
    """Ask the stream's leader for its state."""
    return _info_decoder.decode(await bus.api(f"STREAM.INFO.{name}"))


_UNAVAILABLE: Final = 503
_NO_SUITABLE_PEERS: Final = 10005
_STREAM_EXISTS: Final = 10058


async def ensure_streams(
    bus: Bus, limits: StreamLimits | None = None, *, update: bool = True, timeout: float = 30.0
) -> None:
    """Create every stream that is missing; safe to call from many processes at once.

    With ``update`` those that are there are brought to ``limits``. A role that merely starts must not do that: it would
    undo what an operator has set. It only adds the subjects that are missing.

    A cluster that has just started answers 503 or nothing for a second or two, so this tries again until ``timeout``.

    Raises:
        BusError: A stream could not be declared in time, or the server refuses its configuration.
    """
    deadline = time.monotonic() + timeout
    for config in declarations(limits or StreamLimits()):
        while True:
            try:
                await _ensure(bus, config, update=update)
                break
            except (nats.errors.Error, TimeoutError) as error:
                cause = str(error) or type(error).__name__
            except ApiError as error:
                if error.code != _UNAVAILABLE and error.err_code != _NO_SUITABLE_PEERS:
                    raise
                cause = error.description
            if time.monotonic() > deadline:
                raise BusError(f"stream {config.name} could not be declared within {timeout:g} s: {cause}")
            await asyncio.sleep(0.1)


async def _ensure(bus: Bus, config: StreamConfig, *, update: bool) -> None:
    body = config.as_dict()
    try:
        await bus.api(f"STREAM.CREATE.{config.name}", body)
    except ApiError as error:
        if error.err_code != _STREAM_EXISTS:
            raise
        if update:
            await bus.api(f"STREAM.UPDATE.{config.name}", body)
        else:
            await _widen(bus, config)


async def _widen(bus: Bus, config: StreamConfig) -> None:
    """Add the subjects that an earlier version did not speak on, and leave everything else as it is."""
    found = _configured.decode(await bus.api(f"STREAM.INFO.{config.name}")).config
    missing = [subject for subject in config.subjects or [] if subject not in found.get("subjects", [])]
    if not missing:
        return
    try:
        await bus.api(f"STREAM.UPDATE.{config.name}", {**found, "subjects": [*found.get("subjects", []), *missing]})
    except (ApiError, nats.errors.Error, TimeoutError) as error:  # not every role may: those that may do it for all
        cause = str(error) or type(error).__name__
        log.warning("stream %s lacks %s, and they could not be added: %s", config.name, ", ".join(missing), cause)


async def require_streams(bus: Bus) -> None:
    """Check that the streams are there, for commands that only read.

    Raises:
        BusError: The server has no gpubus streams.
    """
    try:
        await stream_info(bus, LEDGER)
    except ApiError as error:
        raise BusError("this NATS server holds no gpubus streams: start gpubus against it first") from error
