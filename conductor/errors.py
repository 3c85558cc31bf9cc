"""Every exception that Conductor raises on purpose. Imports nothing."""


class ConductorError(Exception):
    """Base of all errors with a message meant for the user: one clear sentence."""


class InvalidSpecError(ConductorError):
    """A pipeline spec that cannot be: the message names the field (and the rank or stage)."""


class DoesNotFitError(InvalidSpecError):
    """A schedule cannot take this spec (memory, micro-batch count, placement): says what would do.

    Attributes:
        missing_memory: what the rank that misses most needs beyond its limit; None where memory is
            not the reason.
    """

    missing_memory: float | None = None


class InvalidScheduleError(ConductorError):
    """A schedule that is incomplete, out of order or over memory: names rank, step and action."""


class DeadlockError(InvalidScheduleError):
    """A schedule in which some action can never start: names the ranks that wait for each other."""


class FormatError(ConductorError):
    """A file that cannot be read: the message names file, line and field."""


class MissingExtraError(ConductorError):
    """An optional dependency is not installed: the message says which extra brings it."""


class RankError(ConductorError):
    """A step that cannot go on, on this rank or another: says which rank, at which action, and why."""


class CannotMoveError(ConductorError):
    """A block that cannot be made to move work, or a part of it that it has not: says what and why."""
