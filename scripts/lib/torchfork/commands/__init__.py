"""What each command does, one module a command; cli.py parses the options."""
