"""Whether one request fits single nodes as they are, without looking at any other."""

from consumers.allocator.engine.crew import loosest
from consumers.allocator.engine.eligibility import Eligibility, screen_key
from consumers.allocator.engine.host import Host
from consumers.allocator.engine.manner import Rules, manner_of
from consumers.allocator.engine.need import Need
from consumers.allocator.engine.rules import FITS, STAGE_SHIFT
from schemas.pod import GpuRequest


class Probe:
    """All filters for one request under the rules of a pool or policy, to be asked of one node after the other."""

    __slots__ = ("_eligibility", "_need")

    def __init__(self, request: GpuRequest, rules: Rules) -> None:
        self._eligibility = Eligibility(screen_key(loosest(request)))
        self._need = Need(request, manner_of(request, rules))

    def standing(self, host: Host) -> list[int] | None:
        """Return the slots that the request may have whatever is free; None if the node is refused whatever is free."""
        return None if self._eligibility.node_stage(host) else self._eligibility.standing(host)

    def fits(self, host: Host, standing: list[int]) -> bool:
        """Return whether what is free now is enough, given what :meth:`standing` said."""
        slots = self._need.sift(host, standing)[0]
        return self._need.judge(host, slots)[0] >> STAGE_SHIFT == FITS
