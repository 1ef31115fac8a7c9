"""What an updater knows: the fold of what pools want, of what runs, and of the rollouts' records. No I/O."""

from collections import defaultdict

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.updater.alarms import Alarms
from consumers.updater.progress import ACTIVE
from consumers.updater.seen import Seen
from consumers.updater.verdict import some
from schemas.rollout import COMPONENTS, Component, ComponentSpec, Member, Rollout

STATE_FILTERS = ("gpubus.state.component.*.*", "gpubus.state.member.*.*.*")
LEDGER_FILTERS = ("gpubus.ledger.rollout.>",)

_LEDGER = "gpubus.ledger."

Key = tuple[str, Component]
"""Pool and component."""


def key_of(pool: str, component: str) -> Key:
    """Return the key of a pool's component.

    Raises:
        UndecodableError: There is no such component.
    """
    for known in COMPONENTS:
        if known == component:
            return pool, known
    raise UndecodableError(f"{component!r} is no component: use one of {', '.join(COMPONENTS)}")


def mend(pool: str, component: str) -> str:
    """Return what helps where a rollout's record cannot be read."""
    return f"nothing is updated until `gpubus rollout reset {pool} {component}` begins it anew"


class View:
    """All pools and components, by key.

    What cannot be read stops the rollout that it belongs to: a member that is overlooked could be updated too much, a record
    that is overlooked would be begun anew. It goes on with the next good message on the same subject.
    """

    def __init__(self) -> None:
        self._specs: dict[Key, ComponentSpec] = {}
        self._members: defaultdict[Key, dict[str, Member]] = defaultdict(dict)
        self._records: dict[Key, tuple[Rollout, int]] = {}
        self._unreadable: defaultdict[Key, set[str]] = defaultdict(set)
        self.alarms = Alarms()

    def keys(self) -> list[Key]:
        """Return every key that something is known of, in order."""
        return sorted({*self._specs, *self._records})

    def active(self) -> list[Key]:
        """Return the keys whose rollout goes on by itself."""
        return sorted(key for key, (record, _) in self._records.items() if record.phase in ACTIVE)

    def seen(self, key: Key) -> Seen:
        """Return what is known of one pool and component; no specification when some of it cannot be read."""
        if self._unreadable[key]:
            return Seen(None)
        spec = self._specs.get(key)
        return Seen(spec, tuple(self._members[key].values()), self.alarms.firing(key[0]), gone=spec is None)

    def spec(self, key: Key) -> ComponentSpec | None:
        """Return what a pool wants of a component, as it was last said."""
        return self._specs.get(key)

    def members(self, key: Key) -> tuple[Member, ...]:
        """Return what runs."""
        return tuple(self._members[key].values())

    def stuck(self, key: Key) -> str:
        """Return why nothing is done although there may be something to do: what cannot be read, and what helps."""
        subjects = self._unreadable[key]
        if any(subject.startswith(_LEDGER) for subject in subjects):
            return f"its record cannot be read: {mend(*key)}"
        names = some(subjects)
        return (
            f"nothing is updated while {names} cannot be read: the next good record on it lets it go on"
            if names
            else ""
        )

    def member(self, key: Key, name: str) -> Member | None:
        """Return a member as it runs."""
        return self._members[key].get(name)

    def record(self, key: Key) -> tuple[Rollout | None, int]:
        """Return a rollout's record and its sequence in LEDGER; 0 when there is none."""
        return self._records.get(key, (None, 0))

    def put_record(self, key: Key, record: Rollout, seq: int) -> None:
        """Take in a record, unless a newer one is known already."""
        if seq > self.record(key)[1]:
            self._records[key] = record, seq

    def forget_records(self) -> None:
        """LEDGER was made anew."""
        self._records.clear()

    def on_state(self, record: Record) -> Key:
        """Apply one record of STATE and return the key that it is about.

        Raises:
            UndecodableError: It cannot be read.
        """
        kind, key, name = _place(record.subject)
        with_name = kind == "member"
        if record.deleted:
            self._unreadable[key].discard(record.subject)
            if with_name:
                self._members[key].pop(name, None)
            else:
                self._specs.pop(key, None)
            return key
        self._unreadable[key].add(record.subject)
        if with_name:
            member = codec.decode_as(Member, record.payload).data
            codec.check_name(f"{member.pool}/{member.component}/{member.name}", "/".join((*key, name)))
            self._members[key][name] = member
        else:
            spec = codec.decode_as(ComponentSpec, record.payload).data
            codec.check_name(f"{spec.pool}/{spec.component}", "/".join(key))
            self._specs[key] = spec
        self._unreadable[key].discard(record.subject)
        return key

    def on_ledger(self, record: Record) -> Key:
        """Apply one record of LEDGER and return the key that it is about.

        Raises:
            UndecodableError: It cannot be read.
        """
        _, key, _ = _place(record.subject)
        if record.deleted:
            self._records.pop(key, None)
            self._unreadable[key].discard(record.subject)
            return key
        self._unreadable[key].add(record.subject)
        rollout = codec.decode_as(Rollout, record.payload).data
        codec.check_name(f"{rollout.pool}/{rollout.component}", "/".join(key))
        self.put_record(key, rollout, record.seq)
        self._unreadable[key].discard(record.subject)
        return key


def _place(subject: str) -> tuple[str, Key, str]:
    """Split a subject into its kind, the key, and the name of the member if it is about one."""
    try:
        _, kind, pool, component, *name = subjects.names(subject)
    except ValueError as error:
        raise UndecodableError(str(error)) from None
    if len(name) != (kind == "member"):
        raise UndecodableError(f"subject {subject} has no place here")
    return kind, key_of(pool, component), "".join(name)
