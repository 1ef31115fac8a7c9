"""The part of Go's ``text/template`` that alert rules are written in, printing what Go prints.

Pipelines, ``if``, ``else``, ``with``, ``range``, comparison and logic functions, ``len``, ``print`` and ``printf``; whatever
else Go knows is refused when the rule is loaded, with the place and the reason, and never guessed at while an alert fires.
Values are those of a result row: text, integers, floats, booleans and NULL.

Source: Go's ``text/template`` and ``fmt`` package documentation; checked against the real thing in the tests.

Example::

    Template('{{ .node }} is at {{ printf "%.1f" .avg }} °C').render({"node": "a", "avg": 91.25})
"""

from collections.abc import Collection, Mapping

from consumers.alerter.template.evaluate import evaluate
from consumers.alerter.template.functions import Scalar, TemplateRunError
from consumers.alerter.template.lexer import TemplateSyntaxError
from consumers.alerter.template.parser import fields_of, parse

__all__ = ["Scalar", "Template", "TemplateRunError", "TemplateSyntaxError"]


class Template:
    """One parsed template.

    Args:
        text: The template.
        known: Names that a field may have; None allows any, for rows whose columns only the query tells.

    Raises:
        TemplateSyntaxError: It is no template, or uses what is not supported. It names line and column.
    """

    def __init__(self, text: str, known: Collection[str] | None = None) -> None:
        self.text = text
        self._nodes = parse(text, known)

    @property
    def fields(self) -> frozenset[str]:
        """Names of all columns that it mentions."""
        return fields_of(self._nodes)

    def render(self, values: Mapping[str, Scalar]) -> str:
        """Return the text for one row.

        Raises:
            TemplateRunError: Go would fail too, such as for ``lt`` between a number and a text.
        """
        return evaluate(self._nodes, values)
