"""A plain ledger beside the engine: every placement is checked against it, and so is every refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.decision import Decision


@dataclass(frozen=True)
class Machine:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True)
class Ask:
    cpu_milli: int
    memory_mib: int
    gpus: int
    share: int
    models: tuple[str, ...]
    life_s: int = field(default=0, compare=False)

    @property
    def milli(self) -> int:
        return self.gpus * self.share


class WrongPlacementError(Exception):
    """The engine placed a pod where it does not fit, or refused one that fits somewhere."""


class Ledger:
    """What is left of every machine, written down pod by pod."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines: Mapping[str, Machine] = {machine.name: machine for machine in machines}
        self._cpu = {machine.name: machine.cpu_milli for machine in machines}
        self._memory = {machine.name: machine.memory_mib for machine in machines}
        self._free = {machine.name: [1000] * machine.gpus for machine in machines}
        # Machines in the order in which something was given back, and for an ask that fitted nowhere how many were known then:
        # what fits nowhere still fits nowhere but on those that have come since.
        self._freed = list(self._machines)
        self._refused: dict[Ask, int] = {}
        self.allocated = 0

    def fits(self, ask: Ask, name: str) -> bool:
        return (
            self._cpu[name] >= ask.cpu_milli
            and self._memory[name] >= ask.memory_mib
            and (not ask.models or self._machines[name].model in ask.models)
            and sum(free >= ask.share for free in self._free[name]) >= ask.gpus
        )

    def enter(self, ask: Ask, found: Decision) -> None:
        """Write a decision down.

        Raises:
            WrongPlacementError: It is not right.
        """
        if not found.node:
            if any(self.fits(ask, name) for name in set(self._freed[self._refused.get(ask, 0) :])):
                raise WrongPlacementError(f"{ask} was refused, but there is room for it")
            self._refused[ask] = len(self._freed)
            return
        slots = {grant.index for grant in found.gpus}
        free = self._free[found.node]
        right = self.fits(ask, found.node) and len(slots) == len(found.gpus) == ask.gpus
        if not right or any(free[slot] < ask.share for slot in slots):
            raise WrongPlacementError(f"{ask} was placed on {found.node}, GPUs {sorted(slots)}: it does not fit there")
        self._cpu[found.node] -= ask.cpu_milli
        self._memory[found.node] -= ask.memory_mib
        for slot in slots:
            free[slot] -= ask.share
        self.allocated += ask.milli

    def leave(self, ask: Ask, found: Decision) -> None:
        """Give back what a pod was placed on."""
        self._cpu[found.node] += ask.cpu_milli
        self._memory[found.node] += ask.memory_mib
        for grant in found.gpus:
            self._free[found.node][grant.index] += ask.share
        self.allocated -= ask.milli
        self._freed.append(found.node)
