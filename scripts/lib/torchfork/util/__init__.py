"""Files, processes, the terminal: what any tool needs, with no word about PyTorch."""
