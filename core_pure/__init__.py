"""Pure values and transitions of the arena: attrs and numpy only, no clock, no I/O, no randomness, no torch."""
