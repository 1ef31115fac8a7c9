"""What pools put into pods at admission: what a rollout brings their clients to, else what they want. No I/O.

A rollout that has been rolled back keeps new pods on the template that it went back to, images included; one that has stopped
gives them the template that all had before.
"""

from bus import codec, subjects
from bus.errors import UndecodableError
from bus.follower import Record
from consumers.mutator.client import Client, client_of
from schemas.dialects.text import RequestError
from schemas.kube.shape import check_client
from schemas.rollout import ComponentSpec, Rollout, Template
from schemas.rollout_template import made_from

STATE_FILTER = "gpubus.state.component.*.client"
LEDGER_FILTER = "gpubus.ledger.rollout.*.client"


class Clients:
    """The fold, by pool."""

    def __init__(self) -> None:
        self._specs: dict[str, Template] = {}
        self._targets: dict[str, Template] = {}
        self._known: dict[tuple[str, str], Client | None] = {}

    def apply(self, record: Record) -> None:
        """Apply one record of STATE or LEDGER.

        Raises:
            UndecodableError: It cannot be read, or what it would put into pods is no part of one; what it said before holds.
        """
        try:
            _, kind, pool, _ = subjects.names(record.subject)
        except ValueError as error:
            raise UndecodableError(str(error)) from None
        found: Template | None = None
        if not record.deleted and kind == "rollout":
            found = made_from(codec.decode_as(Rollout, record.payload).data)
        elif not record.deleted:
            found = codec.decode_as(ComponentSpec, record.payload).data.template
        if found is not None:
            _check(found, pool)
        templates = self._targets if kind == "rollout" else self._specs
        if found is None:
            templates.pop(pool, None)
        else:
            templates[pool] = found
        self._known.clear()

    def forget_records(self) -> None:
        """LEDGER was made anew."""
        self._targets.clear()
        self._known.clear()

    def get(self, pool: str, vendor: str) -> Client | None:
        """Return what is put into pods of a pool with GPUs of a vendor; None if nothing says what."""
        if (pool, vendor) not in self._known:
            template = self._targets.get(pool) or self._specs.get(pool)
            self._known[pool, vendor] = client_of(template, pool, vendor) if template is not None else None
        return self._known[pool, vendor]


def _check(template: Template, pool: str) -> None:
    try:
        check_client(template.rendered, f"pool {pool}: spec.componentConfig.client")
    except RequestError as error:
        raise UndecodableError(f"{error}; what pods of the pool got before they get on") from None
