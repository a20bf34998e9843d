"""Errors of the device side; misuse of pages and leases raises the core's own."""

from core_pure.errors import ArenaError


class DeviceError(ArenaError):
    """No usable GPU, or not enough of its memory; the message gives bytes asked and free and names the CPU device."""


class TensorError(ArenaError):
    """A tensor of the wrong device, dtype, shape or layout; raised before anything is launched."""


class AlreadyPhysical(ArenaError):
    """Physical write slots were handed to a translation: slots are translated once a step, for every writer (case
    F50).
    """


class StepTooLarge(ArenaError):
    """A batch, a token count or a context beyond what the arena's address-stable buffers were built for."""


class GraphStale(ArenaError):
    """Buffers of an arena that was resized or rebuilt since: capture the graph again."""


class InjectedFault(ArenaError):
    """Raised by the fault hook of tests in the middle of a plan."""
