"""What becomes of changes that somebody else's record came before: they are decided anew, and what belongs together with them."""

from consumers.allocator.book import Addition, Book, Commit, Item, Keep, Removal
from consumers.allocator.bundle import Bundle
from consumers.allocator.mind import Mind
from consumers.allocator.placing import Placing


class Losing:
    """Takes changes of ``mind`` back that will not land, and has them decided anew."""

    def __init__(self, mind: Mind, placing: Placing) -> None:
        self._mind = mind
        self._placing = placing

    def given_up(self, flight: Commit | Bundle) -> None:
        """No answer came and the ledger, read to its end, does not hold the record: let others have the pods."""
        mind = self._mind
        for commit in flight.commits:
            book = mind.shelf.book(commit.node)
            if book.flying is commit:
                for item in self.overtaken(book):
                    mind.forget(item)
                    mind.effects.again.append(item.token)
                mind.show_held(book)

    def overtaken(self, book: Book) -> list[Item]:
        """Somebody else's record came before ours: return all that must be decided anew, on other nodes too."""
        shelf = self._mind.shelf
        bundle = shelf.bundle if book.flying is not None and shelf.is_joint(book.flying) else None
        items = book.overtaken()
        items += self._lose(bundle) if bundle is not None else []
        return items + self._others(items)

    def _lose(self, bundle: Bundle) -> list[Item]:
        """The bundle will never land: return what it was to change."""
        mind = self._mind
        mind.shelf.bundle_lost()
        items = []
        for commit in bundle.commits:
            book = mind.shelf.book(commit.node)
            if book.flying is commit:
                items += book.overtaken()
                mind.show_held(book)
        return items + self._others(items)

    def _others(self, items: list[Item]) -> list[Item]:
        """Pull the rest of the formations of which some members are lost, and return it."""
        formations = {
            id(i.formation): i.formation for i in items if isinstance(i, Addition) and i.formation is not None
        }
        others: list[Item] = []
        for formation in formations.values():
            for member in formation.additions:
                if member in self._mind.shelf.book(member.decision.node).queued:
                    self._mind.pull(member)
                    others.append(member)
        return others

    def retry(self, bundle: Bundle) -> None:
        """The bundle will never land: decide anew what it was to change."""
        items = self._lose(bundle)
        self.note(items)
        self.again(items)

    def note(self, items: list[Item]) -> None:
        """Decisions see no more of what was lost: that is what the next decision about each of these pods tells of it."""
        mind = self._mind
        mind.counters.overtaken += len(items)
        for item in items:
            if isinstance(item, Addition):
                mind.forget(item)
                mind.decider.overtaken(item.decision)

    def again(self, items: list[Item]) -> None:
        """Decide anew what was lost, each formation by its first member, and whether there is room to make.

        What was to be taken off a node that still has it goes again as it is.
        """
        for item in items:
            if isinstance(item, Removal):
                self._take_off(item)
        self.decide_anew(items)

    def _take_off(self, removal: Removal) -> None:
        mind, book = self._mind, self._mind.shelf.book(removal.decision.node)
        if removal.uid in book.held or removal.uid in book.holds:
            mind.snapshot.remove(book.node, removal.uid)
            mind.journal.drop(removal.uid, book.node)
            mind.shelf.queue(book.node, removal)
        else:
            mind.forget(removal)
            mind.effects.again.append(removal.token)  # it is gone from here, or was never here and goes elsewhere

    def decide_anew(self, items: list[Item]) -> None:
        """Decide anew about the pods that were to be placed, or to have room made."""
        additions = [item for item in items if isinstance(item, Addition)]
        keeps = [item for item in items if isinstance(item, Keep)]
        for keep in keeps:
            self._mind.forget(keep)
        formations: dict[int, list[Addition]] = {}
        for addition in additions:
            formations.setdefault(id(addition.formation or addition), []).append(addition)
        for members in formations.values():
            self._placing.reschedule(members)
        for keep in keeps:
            self._placing.schedule(keep.command, keep.token)
