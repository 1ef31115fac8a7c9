"""Writes down what the allocator takes in and decides, in its order, so that it can be thought again."""

from typing import Final

from consumers.allocator.engine import ENGINE_VERSION
from schemas.decision import Decision
from schemas.journal import Adopt, Count, Drop, Free, Freeze, Place, Preempt, Restore, Saw, Step, Tell, Turn
from schemas.pod import Release, Schedule
from schemas.quota import Usage

MOST_STEPS: Final = 2048
"""Steps in one turn at most: a message must not grow with the cluster."""


class Journal:
    """The turns of the allocator called ``name`` that are not published yet.

    A turn is to be on its way before anything that follows from it. So whoever reads a decision finds how it came about,
    even if its author died a moment later.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turns: list[Turn] = []
        self._steps: list[Step] = []
        self._number = 0
        self._decided = self._before = 0
        self._saw: Saw | None = None

    def saw(self, state: int, ledger: int, home: tuple[int, int], now_ns: int) -> None:
        """What the next decision is based on: STATE and LEDGER sequences, the part of the nodes among all parts, and the time."""
        saw = Saw(state, ledger, *home, now_ns)
        if saw != self._saw:
            self._saw = saw
            self._steps.append(saw)

    def placing(self, command: Schedule, counted: tuple[Usage, Usage] | None) -> None:
        """A place for a pod is decided; ``counted`` is what counts against the quota of its namespace, if it has one."""
        if counted is not None:
            self._steps.append(Count(command.namespace, *counted))
        self._decided += 1
        self._add(Place(command.namespace, command.name, command.uid, command.request, command.node, command.created_s))

    def preempting(self, step: Preempt, counted: tuple[Usage, Usage] | None, decisions: int) -> None:
        """Room is made for a pod, which takes so many decisions."""
        if counted is not None:
            self._steps.append(Count(step.namespace, *counted))
        self._decided += decisions
        self._add(step)

    def telling(self, command: Schedule, verdict: Decision) -> None:
        """It is decided that a pod waits, for a reason that lies in other pods."""
        self._decided += 1
        self._add(
            Tell(command.namespace, command.name, command.uid, command.request.pool, verdict.reason, verdict.message)
        )

    def freeing(self, command: Release, node: str) -> None:
        """It is decided that a pod holds nothing on ``node`` any more; empty when it held nothing."""
        self._decided += 1
        self._add(Free(command.uid, node))

    def drop(self, uid: str, node: str) -> None:
        """What a pod held on a node counts no more."""
        self._add(Drop(uid, node))

    def restore(self, uid: str, node: str, seq: int) -> None:
        """A pod holds again on a node what the node's record at ``seq`` says."""
        self._add(Restore(uid, node, seq))

    def adopt(self, node: str, seq: int) -> None:
        """The node holds what its record at ``seq`` says."""
        self._add(Adopt(node, seq))

    def freeze(self, node: str) -> None:
        """The node's record cannot be read."""
        self._add(Freeze(node))

    def take(self) -> list[Turn]:
        """Return the turns to publish. Steps that no decision follows yet wait for one."""
        if self._decided > self._before:
            self._close()
        turns, self._turns = self._turns, []
        return turns

    def _add(self, step: Step) -> None:
        self._steps.append(step)
        if len(self._steps) >= MOST_STEPS:
            self._close()

    def _close(self) -> None:
        self._number += 1
        self._turns.append(
            Turn(
                allocator=self._name,
                number=self._number,
                decided=self._before,
                engine=ENGINE_VERSION,
                steps=tuple(self._steps),
            )
        )
        self._steps, self._before, self._saw = [], self._decided, None
