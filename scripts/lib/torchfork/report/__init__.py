"""What a run of the matrix found, for a terminal, for programs, for people and for a browser."""
