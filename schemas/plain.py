"""YAML of people as data only. Pure, and slow: what is long is to be read in a thread.

Aliases are refused, as a few hundred bytes of them stand for gigabytes, and so are deep nesting and keys that stand twice.
"""

from typing import Any, Final

import yaml

from schemas.dialects.text import RequestError

DEEPEST: Final = 64
"""Levels of nesting; those of a pod are below 20."""


class _Loader(yaml.CSafeLoader):
    """YAML with what the API server refuses refused too: a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  PyYAML's
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
        if twice is not None:
            raise RequestError(str(twice)[:253], "", "stands twice in one object", "keep one of them")
        return super().construct_mapping(node, deep=deep)


def decode_yaml(text: str | bytes, *, field: str, fix: str) -> Any:
    """Return what a document says.

    Args:
        text: The document.
        field: What it is, for messages.
        fix: What to write, for one that cannot be read.

    Raises:
        RequestError: It is none, or says what is refused.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise RequestError(field, f"*{event.anchor}", "is a YAML alias", "write out what it stands for")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST:
                    raise RequestError(field, "", f"is nested deeper than {DEEPEST} levels", fix)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        return yaml.load(text, Loader=_Loader)  # noqa: S506  it is a safe loader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(field, "", f"is no YAML: {error}".replace("\n", " "), fix) from None
