"""The one price list: every second in pipesim is made here, by `CostModel.price`."""

from pipesim.cost.model import Cost, CostModel

__all__ = ["Cost", "CostModel"]
