"""What the parts behind the network do, each measured against not having it, without an engine.

Every trial yields rows of one kind, `NetworkFigure`; `kvswarm study network` makes a page of them.
"""

from kv_tiers.trials.figures import NetworkFigure, NetworkFigures

__all__ = ["NetworkFigure", "NetworkFigures"]
