"""Output layers over large vocabularies: one definition each in NumPy, one fast form in each framework."""
