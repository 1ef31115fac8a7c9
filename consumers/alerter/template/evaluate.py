"""Parsed templates to text."""

from collections.abc import Mapping, Sequence
from typing import Final

from consumers.alerter.template.functions import FUNCTIONS, TemplateRunError, truth
from consumers.alerter.template.gofmt import Scalar, show
from consumers.alerter.template.parser import Branch, Constant, Dot, Field, Node, Operand, Text

NO_VALUE: Final = "<no value>"
MOST_ROUNDS: Final = 1000
"""Rounds of one ``range``: a column's value must not keep an evaluation busy."""

Row = Mapping[str, Scalar]


class _Writer:
    def __init__(self, row: Row) -> None:
        self.row = row
        self.out: list[str] = []

    def write(self, nodes: Sequence[Node], dot: Row | Scalar) -> None:
        for node in nodes:
            if isinstance(node, Text):
                self.out.append(node.text)
            elif isinstance(node, Branch):
                self.branch(node, dot)
            else:
                value = self.value(node.value, dot)
                self.out.append(NO_VALUE if value is None else show(value))

    def branch(self, node: Branch, dot: Row | Scalar) -> None:
        if isinstance(node.value, Dot):
            subject: Row | Scalar = self.row if node.value.root else dot
        else:
            subject = self.value(node.value, dot)
        if isinstance(subject, Mapping):
            if node.kind == "range":
                raise TemplateRunError("range over the whole row is not supported")
            self.write(node.then if subject else node.otherwise, subject if node.kind == "with" else dot)
        elif node.kind == "range":
            self.rounds(node, subject, dot)
        else:
            self.write(node.then if truth(subject) else node.otherwise, subject if self.enters(node, subject) else dot)

    def enters(self, node: Branch, subject: Scalar) -> bool:
        return node.kind == "with" and truth(subject)

    def rounds(self, node: Branch, subject: Scalar, dot: Row | Scalar) -> None:
        if subject is None:
            self.write(node.otherwise, dot)
            return
        if isinstance(subject, bool) or not isinstance(subject, int):
            raise TemplateRunError(f"range can't iterate over {subject!r}: only integers can be counted up to")
        if subject > MOST_ROUNDS:
            raise TemplateRunError(f"range over {subject}: at most {MOST_ROUNDS} rounds")
        for number in range(subject):
            self.write(node.then, number)
        if subject <= 0:
            self.write(node.otherwise, dot)

    def value(self, operand: Operand, dot: Row | Scalar) -> Scalar:
        if isinstance(operand, Constant):
            return operand.value
        if isinstance(operand, Field):
            return self.row.get(operand.name)
        if isinstance(operand, Dot):
            subject = self.row if operand.root else dot
            if isinstance(subject, Mapping):
                raise TemplateRunError("the whole row has no text: name a column")
            return subject
        if operand.name in ("and", "or"):  # the rest is not looked at, and may be wrong
            value: Scalar = None
            for argument in operand.arguments:
                value = self.value(argument, dot)
                if truth(value) is (operand.name == "or"):
                    return value
            return value
        return FUNCTIONS[operand.name].apply([self.value(argument, dot) for argument in operand.arguments])


def evaluate(nodes: Sequence[Node], row: Row) -> str:
    """Render nodes for one row.

    Raises:
        TemplateRunError: An operation is not defined for the values at hand.
    """
    writer = _Writer(row)
    writer.write(nodes, row)
    return "".join(writer.out)
