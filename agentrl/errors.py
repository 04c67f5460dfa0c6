"""Every error that agentrl raises on purpose.

One root, `AgentrlError`; each child is also the standard-library error it specialises, so that callers who
know only Python can still catch it. A message says what is wrong and where; `hint` says what to do.
"""

from __future__ import annotations

from enum import StrEnum


class AgentrlError(Exception):
    """Root of all errors raised on purpose. `str(error)` is one line: the message, then the hint."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UserError(AgentrlError, ValueError):
    """A mistake of the user: bad config, bad argument, missing file. The CLI prints it in one line and exits with 2."""


class EngineError(AgentrlError, ConnectionError):
    """An inference engine did not answer, or answered with something that is not its API. Infrastructure."""


class EngineMistrusted(EngineError):
    """An engine samples from other weights than it was given, by its own word or by its log-probs."""


class WeightsGone(EngineError):
    """The trainer has weights of another version than the one that an engine was to get."""


class EngineRequestError(AgentrlError, ValueError):
    """An engine refused a request as malformed (HTTP 400). Our mistake or the task's, never infrastructure."""


class SandboxError(AgentrlError, OSError):
    """A sandbox could not be started, ended, or its transport broke; a command's failure is none.

    `death` says how it ended (`agentrl.sandbox.death.Death`), where its provider knows.
    """

    def __init__(self, message: str, *, hint: str | None = None, death: StrEnum | None = None) -> None:
        super().__init__(message, hint=hint)
        self.death = death


class ImageError(AgentrlError, ValueError):
    """An image that cannot be made: a step of it failed, or asks for what this backend does not have."""


class TaskError(AgentrlError, ValueError):
    """A task folder that cannot be read, or that this backend cannot run."""


class HarnessFailed(AgentrlError, RuntimeError):
    """A harness did not do its part: it crashed, was killed, or never asked. What that means is the verdict's."""


class LedgerError(AgentrlError, OSError):
    """The ledger cannot be written: the disk is full, or its folder is gone."""


class ProcessFailed(AgentrlError, RuntimeError):
    """A supervised process (engine, trainer) ended and may not be restarted again."""


class RunPaused(AgentrlError, RuntimeError):
    """The circuit breaker tripped: going on would train on luck. Nothing is lost; a person looks, then resumes."""


class RunStalled(AgentrlError, TimeoutError):
    """The watchdog saw no progress for `schedule.stall_timeout_s`."""


class Superseded(AgentrlError, RuntimeError):
    """A controller or trainer of an older epoch tried to change the run."""
