"""What every metrics store can do."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import msgspec

from consumers.metrics.tables import Row, Table, Value


class StoreError(Exception):
    """The store refused: trying the same again will not help."""


class StoreUnavailableError(StoreError):
    """The store could not be reached or did not answer: the same may work later."""


class Result(msgspec.Struct, frozen=True):
    """What a query found. Instants are text, as ``2026-01-31 23:59:59.999`` in UTC."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]

    def named(self) -> list[dict[str, Value]]:
        """Return every row as column names and values."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class MetricsStore(Protocol):
    """A place for metrics. Every method may be called from several tasks at once."""

    @property
    def since(self) -> float:
        """Before when rows may be missing because the store was made then, in seconds since the epoch; 0 when not known."""

    @property
    def lost_rows(self) -> int:
        """Stored rows that somebody took away from under us, as far as we can know."""

    @property
    def trouble(self) -> str:
        """What keeps the store from being used until a person mends it; empty where nothing does."""

    async def open(self) -> Self:
        """Connect, and create what tables are missing.

        Raises:
            StoreError: It cannot be used.
        """

    async def write(self, rows: Mapping[Table, Sequence[Row]]) -> None:
        """Store rows; those with the time and tags of a stored one replace it, so that writing again changes nothing.

        Raises:
            StoreUnavailableError: Some or none are stored; write all of them again later.
            StoreError: They are refused for good.
        """

    async def query(self, sql: str, *, timeout: float) -> Result:
        """Run one query that only reads, within ``timeout`` seconds.

        Raises:
            StoreUnavailableError: No answer in time.
            StoreError: The query is wrong.
        """

    async def set_ttl(self, ttl: str) -> None:
        """Keep rows for ``ttl``, such as ``30d``, in all tables.

        Raises:
            StoreError: It could not be set.
        """

    async def expire(self) -> None:
        """Drop what is older than the time to live, where no server does so by itself.

        Raises:
            StoreError: It could not be dropped.
        """

    async def close(self) -> None:
        """Let go of everything."""
