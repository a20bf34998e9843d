"""Claims about the arena and the means to refute them; needs nothing but core_pure and the standard library."""
