"""Whether the settings of a job fit together. Pure: what a rule needs to know of the machine comes in as `LintFacts`.

An error means that the run cannot work or would learn from something false; a warning, that it wastes something or
ignores a setting. The rules themselves are in `lint_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agentrl.config.schema import JobConfig
from agentrl.errors import UserError


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The run is not started."""
    WARNING = "warning"
    """The run is started, and this is said."""


@dataclass(frozen=True, kw_only=True)
class LintFacts:
    """What the configuration itself does not say. None: not known, and rules that need it stay silent."""

    num_tasks: int | None = None
    """Tasks in `tasks.path` that can run here and match `tasks.include`, training and held-out together."""
    num_cpus: int | None = None
    """CPUs that this process may use."""
    model_found: bool | None = None
    """Whether `model.path` is a folder with a config.json."""
    layer_names: frozenset[str] | None = None
    """Last names of the layers of the model in `model.path`, such as `q_proj`."""
    tasks_found: bool | None = None
    """Whether `tasks.path` is a folder."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that does not fit."""

    rule: str
    """Name of the rule, stable for machines."""
    severity: Severity
    where: str
    """Dotted key of the setting to change."""
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} ({self.hint})"


def error(where: str, message: str, hint: str) -> Finding:
    """A finding that stops the launch; `lint` names its rule."""
    return Finding(rule="", severity=Severity.ERROR, where=where, message=message, hint=hint)


def warning(where: str, message: str, hint: str) -> Finding:
    """A finding that is said and lets the run start; `lint` names its rule."""
    return Finding(rule="", severity=Severity.WARNING, where=where, message=message, hint=hint)


def lint(config: JobConfig, facts: LintFacts | None = None) -> list[Finding]:
    """Findings of all rules, errors first, each group in the order of the rules."""
    from agentrl.config.lint_rules import RULES

    known = facts or LintFacts()
    found = [replace(finding, rule=rule.__name__) for rule in RULES for finding in rule(config, known)]
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


def raise_on_errors(findings: Sequence[Finding]) -> None:
    """Raises UserError with the first error, and says how many more there are. Warnings pass."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    more = f" and {len(errors) - 1} more: agentrl plan FILE lists them" if len(errors) > 1 else ""
    raise UserError(f"{errors[0].where}: {errors[0].message}", hint=f"{errors[0].hint}{more}")
