"""A decode step of a hybrid model over the arena: attention in full and window bands, recurrent states, captured once."""
