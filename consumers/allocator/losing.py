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
        items += self.lose(bundle) if bundle is not None else []
        return items + self._others(items)

    def lose(self, bundle: Bundle) -> list[Item]:
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

    def retry(self, items: list[Item]) -> None:
        """Decide anew what was lost; what was to be taken off a node that still has it goes again as it is."""
        mind = self._mind
        mind.counters.overtaken += len(items)
        additions = [item for item in items if isinstance(item, Addition)]
        for addition in additions:
            mind.forget(addition)
            mind.decider.overtaken(addition.decision)
        for item in items:
            if not isinstance(item, Removal):
                continue
            book = mind.shelf.book(item.decision.node)
            if item.uid in book.held or item.uid in book.holds:
                mind.snapshot.remove(book.node, item.uid)
                mind.journal.drop(item.uid, book.node)
                mind.shelf.queue(book.node, item)
            else:
                mind.forget(item)
                mind.effects.again.append(item.token)  # it is gone from here, or was never here and goes elsewhere
        self.again(items)

    def again(self, items: list[Item]) -> None:
        """Decide anew what was lost, each formation by its first member, and whether there is room to make."""
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
