"""Whether each operator of the additions is a first-class citizen of a finished torch."""
