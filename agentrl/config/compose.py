"""From a YAML file and overrides to a `JobConfig`. Hydra is used here and, for its grammar, in `overrides`.

Hydra composes; everything that Hydra would accept in silence (unknown keys behind `+`, YAML's surprises, a base that
wins over the file) is refused here. Every mistake is a UserError of one line: what is wrong, where, what to do.

Importing this module imports Hydra, which takes 0.3 s: commands import it when they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config import checks, explain
from agentrl.config import overrides as command_line
from agentrl.config.catalog import PACKAGED, SCHEMA, Catalog, catalog_for, shown
from agentrl.config.schema import JobConfig
from agentrl.config.tree import Tree, from_tree, to_text
from agentrl.config.user_files import UserFiles, collect
from agentrl.config.yaml_file import Mark, read_yaml


class Origin(StrEnum):
    """Who wrote a part of the configuration."""

    SCHEMA = "schema"
    """The defaults in the dataclasses."""
    PACKAGED = "packaged"
    """A YAML file that ships with agentrl."""
    USER = "user"
    """A YAML file of the user."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One part of a composed configuration. Later sources win over earlier ones."""

    name: str
    """As in a defaults list: `agentrl`, `model/tiny`."""
    package: str
    """The dotted key below which its settings land; '' is the top."""
    origin: Origin
    file: Path | None
    """None for the schema."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checked configuration."""

    config: JobConfig
    tree: Tree
    """The same as plain values; what `config.yaml` of a run holds."""
    text: str
    """The tree as YAML."""
    file: Path
    """The user's file, absolute."""
    overrides: tuple[str, ...]
    sources: tuple[Source, ...]
    """In the order in which they were merged."""


def load(file: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Compose `file` with Hydra overrides. Raises UserError; reads files, starts and writes nothing."""
    path = checks.usable_file(file)
    primary = read_yaml(path, str(file))
    catalog = catalog_for(path)
    parsed = command_line.parse(overrides)
    command_line.check(parsed, catalog)
    files = collect(primary, catalog, [override.option for override in parsed if override.option])
    checks.check_names_itself(primary)
    with _hydra(path.parent):
        sources = _sources(path.stem, overrides, catalog)
        checks.check_order(primary, [(source.name, source.file) for source in sources])
        marks = _marks(sources, files)
        for override in parsed:
            marks |= override.marks()
        tree = _compose(path, overrides, marks)
    checks.check_tree(tree, marks)
    config = from_tree(tree)
    return Loaded(
        config=config, tree=tree, text=to_text(config), file=path, overrides=tuple(overrides), sources=sources
    )


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    """Hydra ready to compose from `folder`; whatever an outer program had set up in Hydra is put back at the end."""

    _register()
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(folder)):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


class _PackagedConfigs(SearchPathPlugin):  # type: ignore[misc]  # Hydra ships no types
    """Appends the folders that a file's own folder is completed by."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        mains = [element.path for element in search_path.get_path() if element.provider == "main"]
        folder = Path(mains[0].removeprefix("file://")) if mains else PACKAGED
        for extra in catalog_for(folder / "any.yaml").folders[1:]:
            search_path.append("agentrl", f"file://{extra}")


def _register() -> None:
    """Tell Hydra about the typed schema and the packaged folder. Idempotent."""

    store = ConfigStore.instance()
    if f"{SCHEMA}.yaml" in store.repo:
        return

    Plugins.instance().register(_PackagedConfigs)
    node = OmegaConf.structured(JobConfig)
    _thaw(node)
    store.store(name=SCHEMA, node=node, provider="agentrl")


def _thaw(node: Any) -> None:
    """Frozen dataclasses become read-only nodes, into which nothing can be merged: make them writable."""

    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _thaw(child)


def _sources(name: str, overrides: Sequence[str], catalog: Catalog) -> tuple[Source, ...]:

    try:
        defaults = (
            GlobalHydra.instance().config_loader().compute_defaults_list(name, list(overrides), RunMode.RUN).defaults
        )
    except HydraException as error:
        raise explain.composition(error, {}) from error
    return tuple(
        _source(default.config_path, default.package or "", catalog)
        for default in defaults
        if default.config_path is not None and not default.config_path.startswith("hydra/")
    )


def _source(name: str, package: str, catalog: Catalog) -> Source:
    file = None if name == SCHEMA else catalog.find(name)
    if file is None:
        return Source(name=name, package=package, origin=Origin.SCHEMA, file=None)
    origin = Origin.PACKAGED if file.is_relative_to(PACKAGED) else Origin.USER
    return Source(name=name, package=package, origin=origin, file=file)


def _marks(sources: Sequence[Source], files: UserFiles) -> dict[str, Mark]:
    """Where each key got its value, from the YAML files; the last writer stays."""
    marks: dict[str, Mark] = {}
    for source in sources:
        if source.file is not None:
            file = files.get(source.file) or read_yaml(source.file, shown(source.file))
            marks |= file.marks(source.package)
    return marks


def _compose(path: Path, overrides: Sequence[str], marks: dict[str, Mark]) -> Tree:
    """Merge, resolve every interpolation, and return plain values."""

    try:
        composed = compose(path.stem, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise explain.composition(error, marks) from error
    OmegaConf.register_new_resolver("here", lambda: str(path.parent), replace=True)
    try:
        _check_resolves("", composed, marks)
        tree = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    finally:
        OmegaConf.clear_resolver("here")
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _check_resolves(prefix: str, node: Any, marks: dict[str, Mark]) -> None:
    """Every interpolation leads to a value; OmegaConf itself looks only when the value is read."""

    for name in node:
        key = f"{prefix}.{name}" if prefix else str(name)
        if OmegaConf.is_missing(node, name):
            continue
        try:
            child = node[name]
            OmegaConf.to_container(child, resolve=True) if OmegaConf.is_list(child) else None
        except (OmegaConfBaseException, RecursionError) as error:
            raise explain.unresolvable(key, marks, error) from error
        if isinstance(child, DictConfig):
            _check_resolves(key, child, marks)
