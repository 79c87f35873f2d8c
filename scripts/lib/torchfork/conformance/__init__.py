"""Whether each operator of the additions is a first-class operator of a finished torch."""
