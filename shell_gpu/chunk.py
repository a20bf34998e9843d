"""The packed words that one upload carries: what the kernels read, as one int32 array.

A chunk is part of a plan (usually all of it) plus the writes to the lease table and the batch of one step. Counts and
offsets are in the header, so a captured graph of fixed shape runs a chunk of any size up to its capacity: kernels read
how much there is to do on the device. Word positions below are the format; kernels and twins share them.

Header words: version, words used, waves, then (offset, count) pairs for the segments of three waves, the fill
segments, the table rows, the lease-table writes and the batch rows; then the tokens of this step and the end of the
stale write slots. Segment (4 words): offset of its rows, number of rows, 16-byte units per frame, and the longest run
(waves) or pattern (fills). Wave row (3 words): run length in frames (not read where the segment's longest run is 1),
source frame, target frame. Fill row (1 word): frame. Table row (2 words): page, frame or -1. Lease write (2 words):
flat index, page. Batch row (5 words): lease row or -1, tokens before, new tokens, first write slot, tokens that the
same batch row held last time (its stale tail is zeroed up to there).
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 2
HEADER_WORDS: Final = 32

AT_VERSION: Final = 0
AT_WORDS: Final = 1
AT_WAVES: Final = 2
AT_WAVE: Final = 3  # three (offset, count) pairs
AT_FILLS: Final = 9
AT_ROWS: Final = 11
AT_WRITES: Final = 13
AT_BATCH: Final = 15
AT_TOKENS: Final = 17  # new tokens of this step, end of the write slots the step before left behind

WAVES_PER_CHUNK: Final = 3
SEGMENT_WORDS: Final = 4
WAVE_ROW_WORDS: Final = 3
BATCH_ROW_WORDS: Final = 5

UNIT_BYTES: Final = 16  # one vector access of a thread; every frame is a whole number of units

ZERO: Final = 0
POISON: Final = 1
POISON_BYTE: Final = 0xFF  # reads as NaN in bfloat16, float16, float32, float8_e4m3fn and float8_e5m2

GROWS: Final = 0  # a band whose pages follow the tokens of a request
FIXED: Final = 1  # a band that holds a fixed number of pages a request: states, encoder tokens

BAND_KIND: Final = 0  # words of one row of the device's band parameters, int64[bands, BAND_WORDS]
BAND_SLOTS: Final = 1
BAND_WIDTH: Final = 2
BAND_LEASES: Final = 3
BAND_TABLE: Final = 4
BAND_WRITES: Final = 5
BAND_ID_BASE: Final = 6
BAND_ID_END: Final = 7
BAND_WORDS: Final = 8
