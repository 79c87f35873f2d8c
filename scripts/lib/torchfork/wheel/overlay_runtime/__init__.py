"""Additions to the torch that is installed, activated when it is imported.

This package was made by torchfork for one build of PyTorch. Its .pth file imports it at each start
of the interpreter, so it does nothing but wait for `import torch`; where .pth files are not read
(python -S, a directory on PYTHONPATH), import it before torch. TORCHFORK_OVERLAY=0 switches it off.
"""

import sys


class Waiting:
    """Stands on sys.meta_path: waits until torch, or its code generator, is imported."""

    torchfork_overlay = __name__
    served = None

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]  # kept small
        """The spec of a module that the overlay has; None for everything else."""
        # Whenever torch is looked for: the path may have changed since a program asked for it.
        if name == "torch" or (name == "torchgen" and cls.served is None):
            from . import activate

            cls.served = activate.served(__name__)
        return cls.served and cls.served(name, path, target)


# As a package of its own, not where torchfork imports it from within its tooling.
if "." not in __name__:
    if "torch" in sys.modules:
        from . import activate

        activate.warn_of_order(__name__)
    else:
        sys.meta_path.insert(0, Waiting)
