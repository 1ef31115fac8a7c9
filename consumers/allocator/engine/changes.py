"""Which rows changed, in order, so that each cached view recomputes those and no others."""


class ChangeLog:
    """Row numbers in the order the rows changed, the older ones forgotten.

    A reader keeps a cursor and asks for what came after it. A cursor from before what is remembered means that the reader
    must look at every row, which by then is the cheaper way.

    Attributes:
        end: Cursor after the last change.
    """

    __slots__ = ("_base", "_keep", "_rows", "end")

    def __init__(self, keep: int) -> None:
        self._rows: list[int] = []
        self._keep = max(keep, 64)
        self._base = 0
        self.end = 0

    def add(self, row: int) -> None:
        """Note that a row changed."""
        self._rows.append(row)
        self.end += 1
        if len(self._rows) > 2 * self._keep:
            del self._rows[: -self._keep]
            self._base = self.end - self._keep

    def since(self, cursor: int) -> set[int] | None:
        """Return the rows that changed after ``cursor``, or None when that is no longer known."""
        if cursor < self._base:
            return None
        return set(self._rows[cursor - self._base :])
