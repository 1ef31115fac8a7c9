"""Replicas of the watcher that lag, crash and overtake each other: STATE ends as the API server is, and nothing is forgotten.

The bus is played by a dictionary with the compare-and-set of the real one; everything else is the watcher's own code.
"""

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bus import codec
from producers.watcher.plan import Stored, stored_of
from producers.watcher.world import POD, World, place, subject_of
from schemas.kube.core import Amounts, Container, KubePod, ObjectMeta, PodSpec, PodStatus
from schemas.kube.pools import GPUPoolSpec, NodeManagerConfig
from schemas.kube.resources import GPUPool
from schemas.pod import Pod, Release, Schedule

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("a", "b")


class Replica:
    """A watcher: its world, how far it has read, and what it is about to write."""

    def __init__(self) -> None:
        self.world = World(lambda: None)
        annotations = {"tensor-fusion.ai/is-default-pool": "true"}
        meta = ObjectMeta(name="shared", resource_version="1", annotations=annotations)
        self.world.settings.pools.put(GPUPool(meta, GPUPoolSpec(node_manager_config=NodeManagerConfig())))
        self.world.dirty.clear()
        self.read = 0
        self.wishes: list = []


class Watchers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.version = 10
        self.uids = 0
        self.pods: dict[str, KubePod] = {}
        self.log: list[tuple[str, KubePod | None, int]] = []
        self.state: dict[str, tuple[int, bytes]] = {}
        self.stored: dict[str, Stored] = {}
        self.seq = 0
        self.commands: dict[str, object] = {}
        self.left_to_binder: set[str] = set()
        self.replicas = [Replica(), Replica()]
        for one in self.replicas:
            self.list(one)

    # What happens in the cluster

    def _write(self, name: str, pod: KubePod | None) -> None:
        if pod is None:
            del self.pods[name]
        else:
            self.pods[name] = pod
        self.log.append((name, pod, self.version))

    def _pod(self, name: str, uid: str, node: str = "", phase: str = "Pending", cores: str = "50") -> KubePod:
        self.version += 1
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": cores, "nvidia.com/gpumem": "1024"}
        return KubePod(
            metadata=ObjectMeta(name=name, namespace="default", uid=uid, resource_version=str(self.version)),
            spec=PodSpec(
                scheduler_name="hami-scheduler",
                node_name=node,
                containers=(Container(name="main", resources=Amounts(limits=limits)),),
            ),
            status=PodStatus(phase=phase),
        )

    @rule(name=st.sampled_from(NAMES), cores=st.sampled_from(["50", "60", "bad"]))
    def create(self, name: str, cores: str) -> None:
        if name not in self.pods:
            self.uids += 1
            self._write(name, self._pod(name, f"uid-{self.uids}", cores=cores))

    @rule(name=st.sampled_from(NAMES))
    def bind(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and not pod.spec.node_name:
            self._write(name, self._pod(name, pod.metadata.uid, "node-1"))

    @rule(name=st.sampled_from(NAMES))
    def end(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.spec.node_name:
            self._write(name, self._pod(name, pod.metadata.uid, "node-1", "Succeeded"))

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.pods:
            self.version += 1
            self._write(name, None)

    # What replicas do

    def list(self, replica: Replica) -> None:
        for pod in self.pods.values():
            replica.world.put(pod)
        replica.world.complete(self.version)
        replica.world.compare(self.stored)
        replica.read = len(self.log)

    @rule(which=st.integers(0, 1))
    def hear(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.read < len(self.log):
            name, pod, version = self.log[replica.read]
            replica.read += 1
            if pod is None:
                replica.world.gone("default", name, version)
            else:
                replica.world.put(pod)

    @rule(which=st.integers(0, 1))
    def think(self, which: int) -> None:
        """Decide what to say, and give the commands; the state is replaced later, when others may have come first."""
        replica = self.replicas[which]
        if replica.wishes:
            return
        batch, replica.world.dirty = dict(replica.world.dirty), {}
        for (kind, key), news in batch.items():
            subject = subject_of(kind, key)
            stored = self.stored.get(subject)
            owed = replica.world.pods.owed(key, stored, NOW) if kind == POD else []
            told = replica.world.tell(kind, key, stored, NOW, self.seq, news=news)
            for _, payload, msg_id in owed + (told.commands if told is not None else []):
                self.commands.setdefault(msg_id, codec.decode(payload).data)
            if told is None:
                replica.world.done(kind, key, stored.version if stored is not None else 0)
                continue
            replica.wishes.append((kind, key, told, self.state.get(subject, (0, b""))[0], stored))

    @rule(which=st.integers(0, 1))
    def write(self, which: int) -> None:
        replica = self.replicas[which]
        wishes, replica.wishes = replica.wishes, []
        for kind, key, told, expected, stored in wishes:
            subject = told.subject
            if not told.payload and stored is None:
                replica.world.done(kind, key, told.version)
            elif self.state.get(subject, (0, b""))[0] == expected:
                self._replace(subject, told.payload, replica)
                replica.world.done(kind, key, told.version)
            else:
                replica.world.again(kind, key, told)

    def _replace(self, subject: str, payload: bytes, by: Replica) -> None:
        self.seq += 1
        self.state[subject] = (self.seq, payload)
        if payload:
            self.stored[subject] = stored_of(self.seq, codec.decode(payload))
        else:
            self.stored.pop(subject, None)
        for other in self.replicas:
            if other is not by:
                other.world.review(subject)

    @rule(which=st.integers(0, 1))
    def crash(self, which: int) -> None:
        """What was decided is lost; a new process lists what there is.

        If the commands were given and the pod vanishes before anybody has stored it, the binder finds it gone; the
        reconciler does, if it was bound by then.
        """
        for _, key, _, _, _ in self.replicas[which].wishes:
            self.left_to_binder |= {
                one.uid for one in self.commands.values() if isinstance(one, Schedule) and one.name == key[1]
            }
        self.replicas[which] = Replica()
        self.list(self.replicas[which])

    def settle(self) -> None:
        for _ in range(100):
            for which, replica in enumerate(self.replicas):
                while replica.read < len(self.log):
                    self.hear(which)
                self.write(which)
                self.think(which)
                self.write(which)
            if not any(replica.world.dirty or replica.wishes for replica in self.replicas):
                return
        raise AssertionError("replicas do not come to rest")

    @invariant()
    def what_is_released_was_not_there_any_more(self) -> None:
        live = {pod.metadata.uid for pod in self.pods.values() if not pod.ended}
        released = {one.uid for one in self.commands.values() if isinstance(one, Release)}
        assert not live & released

    def teardown(self) -> None:
        self.settle()
        told = {place(subject)[1][1]: stored for subject, stored in self.stored.items() if place(subject)[0] == POD}
        readable = {name: pod for name, pod in self.pods.items() if _readable(pod)}
        assert told.keys() == readable.keys()
        for name, pod in readable.items():
            assert (told[name].pod.uid, told[name].pod.node) == (pod.metadata.uid, pod.spec.node_name)
            assert told[name].pod.ended == pod.ended
        scheduled = {one.uid for one in self.commands.values() if isinstance(one, Schedule)}
        released = {one.uid for one in self.commands.values() if isinstance(one, Release)}
        refused = {one.pod_uid for one in self.commands.values() if type(one).__name__ == "Decision"}
        for pod in self.pods.values():
            uid = pod.metadata.uid
            if not pod.spec.node_name:
                assert uid in (scheduled if _readable(pod) else refused)
        live = {pod.metadata.uid for pod in self.pods.values() if not pod.ended}
        assert scheduled - live <= released | self.left_to_binder


def _readable(pod: KubePod) -> bool:
    return pod.spec.containers[0].resources.limits["nvidia.com/gpucores"] != "bad"


TestWatchers = Watchers.TestCase
TestWatchers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    "steps",
    [
        ("create", "crash 1", "think 1", "bind", "end"),
        ("create", "hear 1", "think 1", "delete", "create"),
        ("create", "hear 1", "think 1", "bind", "delete", "create"),
        ("create", "hear 1", "think 1", "bind", "end", "write 1", "crash 1"),
        ("create", "hear 1", "think 1", "crash 1", "end"),
    ],
)
def test_what_is_scheduled_before_state_knows_the_pod_is_released(steps: tuple[str, ...]) -> None:
    machine = Watchers()
    for step in steps:
        name, _, which = step.partition(" ")
        if which:
            getattr(machine, name)(int(which))
        else:
            getattr(machine, name)("a", *(["50"] if name == "create" else []))
    machine.teardown()


def test_the_model_speaks_of_pods() -> None:
    replica = Replica()
    machine = Watchers()
    machine.create("a", "50")
    machine.settle()
    (subject,) = machine.stored
    assert isinstance(codec.decode(machine.state[subject][1]).data, Pod)
    assert replica.world.pods.refused == 0
