"""Completion of overrides in the shell, from the schema and the config groups alone.

It runs at every press of TAB, so it must not compose anything: neither Hydra nor OmegaConf is imported.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.catalog import Catalog
from agentrl.config.fields import Leaf, schema


def candidates(word: str, catalog: Catalog) -> list[str]:
    """What an override that begins with `word` can become: `model=tiny`, `schedule.steps=`, `trainer.`, sorted.

    A leading `+`, `++` or `~` is kept. `group.` and `key=` are to be completed further.
    """
    bare = word.lstrip("+~")
    prefix = word[: len(word) - len(bare)]
    key, equals, _ = bare.partition("=")
    found = _values(key, catalog) if equals else _keys(key, catalog)
    return sorted({prefix + candidate for candidate in found if candidate.startswith(bare)})


def _keys(key: str, catalog: Catalog) -> Iterator[str]:
    section = key.rpartition(".")[0]
    known = schema()
    if section in known.sections:
        for child in known.children(section):
            yield f"{child}." if child in known.sections else f"{child}="
    if not section:
        for group in catalog.groups():
            yield f"{group}="


def _values(key: str, catalog: Catalog) -> Iterator[str]:
    leaf = schema().leaves.get(key)
    values = catalog.options(key) if leaf is None else _leaf_values(leaf)
    for value in values:
        yield f"{key}={value}"


def _leaf_values(leaf: Leaf) -> list[str]:
    values = list(leaf.options)
    if leaf.type is bool:
        values = ["true", "false"]
    elif leaf.type in (int, float) and not leaf.many and leaf.default is not None:
        values = [str(leaf.default)]
    return [*values, "null"] if leaf.optional else values
