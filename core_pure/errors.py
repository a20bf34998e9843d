"""Typed errors. Each name says whose fault it is; every message carries the fields that a caller needs.

A refusal ("this demand does not fit") is a value, not an exception: see ``fits.Refusal``. What stands here is misuse
(the caller named something that is not there), bad input (a layout or a recording that cannot be), or a broken promise
(the core contradicts itself: a crash, never a retry).
"""


class ArenaError(Exception):
    """Base of every error that this package raises on purpose."""


# --- bad input ---------------------------------------------------------------------------------------------------------


class ConfigError(ArenaError):
    """A model description cannot be understood; the message names the field, the value and what was expected."""


class LayoutError(ArenaError):
    """The bands cannot be laid out in the bytes given; the message itemises them and names remedies."""


class RecordingError(ArenaError):
    """An encoded plan, event or recording is damaged, or belongs to another layout or version."""


class DemandError(ArenaError):
    """A demand names an unknown band, or a count that is negative or no whole number."""


# --- misuse by the holder of pages -------------------------------------------------------------------------------------


class PageError(ArenaError):
    """Base of the errors about page ids."""


class PageNotBound(PageError):
    """The caller named a page that holds nothing: freed already, or never allocated."""


class SinkPage(PageError):
    """The caller named page 0 or a negative id: the sink is never handed out and never freed."""


class DuplicatePage(PageError):
    """The same page is named twice in one call."""


class ForeignPage(PageError):
    """The id belongs to no band of this arena, or to another band than the call is about."""


class PagePinned(PageError):
    """The page is pinned: a transfer has its address, so it can be neither released nor moved."""


class PinError(PageError):
    """Unpin without a pin."""


class FenceError(ArenaError):
    """A fence that was never launched, or a reader that has passed already."""


class LeaseStale(ArenaError):
    """A lease handle whose sequence has ended; its pages may belong to somebody else by now."""


class LeaseError(ArenaError):
    """A lease is used beyond what it holds: a trim past its length, a context beyond the page table."""


# --- the core contradicts itself, or the shell lost something ----------------------------------------------------------


class PromiseBroken(ArenaError):
    """``fits`` said yes and the allocation on the same value refused. A defect of this package: crash, report it."""


class CorruptState(ArenaError):
    """``verify`` found violations while ``KVARENA_STRICT=1``."""


class ContentsLost(ArenaError):
    """The buffer's bytes are gone (sleep, or a device fault in the middle of a plan); tables are intact."""


class WrongThread(ArenaError):
    """A persistent table was used by a second thread without being handed over."""


class UnsupportedRequirement(ArenaError):
    """A requirement of the serving layer cannot be met; the message names it and what would work."""
