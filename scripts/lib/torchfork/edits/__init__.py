"""Every text edit of upstream files: operator lists, type stubs, patches."""
