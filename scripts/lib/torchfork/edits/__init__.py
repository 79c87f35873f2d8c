"""Changes of upstream's own text files: operator lists, type stubs, patches."""

from typing import Literal

# How a torch is built: additions put into an official wheel, or into a full source tree.
BuildMode = Literal["graft", "source"]
