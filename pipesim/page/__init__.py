"""The report as one web page that needs nothing but itself: no network, no script."""

from pipesim.page.page import report_page
from pipesim.page.study import Study, study

__all__ = ["Study", "report_page", "study"]
