"""The tab in Locust's web UI that shows a running swarm: latency, caches, order of service."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader


def open_live_tab(leader: "Leader") -> None:
    """Add the tab to the web UI of the process that leads swarms; without one nothing is done."""
    web_ui = leader.environment.web_ui
    if web_ui is None:
        return
    # A headless run starts without what follows.
    from dashboards.live_tab.live_view import LiveView
    from dashboards.live_tab.locust_page import LocustPage
    from dashboards.live_tab.pages import Pages

    view = LiveView(leader)
    view.watch()
    LocustPage(leader, web_ui).extend()
    Pages(view, web_ui).add()
