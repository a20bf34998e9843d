"""Word positions of the small arrays that a model step uploads; kernels, twins and callers share them.

Lanes, int32[LANE_WORDS, batch], one column per lane of a captured decode: the row of the block tables (-1: padding), the
index of its write slot, tokens held with the new one, the place of its last token, and the token to read (-1: the last).
Prompt tiles, int32[n, TILE_WORDS]: table row, first token in the packed step, its position, tokens.
Runs, int32[RUN_WORDS, n]: table row, first token in the packed step, tokens.
"""

from typing import Final

LANE_ROW: Final = 0
LANE_WRITE: Final = 1
LANE_LENGTH: Final = 2
LANE_SOURCE: Final = 3
LANE_TOKEN: Final = 4
LANE_WORDS: Final = 5

TILE_WORDS: Final = 4
RUN_WORDS: Final = 3

PADDING: Final = -1
"""Row of a padded lane."""
LAST_TOKEN: Final = -1
"""Token of a lane that reads what it produced in the step before."""
