"""The course in a browser, from the link on: the first notebooks, and the panel in every place where it must work."""

import pytest
from jupyterlab_page import PROJECTOR  # noqa
from playwright.sync_api import expect


def ready(page, name: str) -> None:
    """A page of these tests, run as far as its panel."""
    page.open(name)
    page.run_all()
    expect(page.panel).to_be_visible()
    expect(page.picture).to_be_visible()
    page.panel.scroll_into_view_if_needed()


@pytest.mark.parametrize("name", ["00-start-here", "01-locks"])
def test_a_chapter_runs_from_top_to_bottom(page, name):
    page.open(name)
    page.run_all()
    page.run_cells()
    assert page.errors == []
    assert page.notebook.locator("svg[role=img]").count() > 0
    expect(page.window.locator(".Toastify__toast, .jp-Dialog")).to_have_count(0)


def test_freeze_wake_kill(page):
    ready(page, "91-drive")
    expect(page.state("A")).to_contain_text("running")
    page.shot("panel-1280")
    page.button("freeze A").click()
    expect(page.state("A")).to_contain_text("frozen")
    expect(page.state("B")).to_contain_text("running")
    expect(page.picture).to_contain_text("frozen: ")
    page.shot("panel-frozen", page.panel)
    page.button("wake A").click()
    expect(page.state("A")).to_contain_text("running")
    page.button("kill A").click()
    expect(page.state("A")).to_contain_text("killed")
    page.button("kill redis-2").click()
    expect(page.state("redis-2")).to_contain_text("dead")
    page.shot("panel-killed", page.panel)
    page.button("restart redis-2, data lost").click()
    expect(page.state("redis-2")).to_contain_text("running")
    page.row("B").get_by_role("button", name="more").click()
    page.button("cut B from redis-1").click()
    expect(page.details("B")).to_contain_text("cut from redis-1")
    page.shot("panel-more", page.panel)
    page.button("heal B to redis-1").click()
    expect(page.details("B")).not_to_contain_text("cut from redis-1")


def test_the_primary_fails(page):
    ready(page, "92-failover")
    expect(page.panel).to_contain_text("primary: redis-1")
    page.shot("failover-before", page.panel)
    page.button("fail the primary").click()
    expect(page.state("redis-1")).to_contain_text("dead")
    expect(page.panel).to_contain_text("primary: redis-2")
    page.shot("failover-after", page.panel)
    page.button("freeze redis-2").click()
    expect(page.panel).to_contain_text("primary: none now")


def test_it_works_while_a_cell_waits(page):
    ready(page, "93-waits")
    page.waits()
    expect(page.state("A")).to_contain_text("running")
    page.button("freeze A").click()
    expect(page.state("A")).to_contain_text("frozen")
    page.button("wake A").click()
    expect(page.state("A")).to_contain_text("running")
    page.waits()
    page.button("kill A").click()
    expect(page.state("A")).to_contain_text("killed")
    expect(page.notebook).to_contain_text("A was killed")  # the cell that waited for it says so


def test_after_a_restart_and_in_a_closed_lab(page):
    ready(page, "91-drive")
    page.button("freeze A").click()
    expect(page.state("A")).to_contain_text("frozen")
    page.restart_and_run_all()
    expect(page.state("A")).to_contain_text("running")  # it is another A
    page.button("freeze A").click()
    expect(page.state("A")).to_contain_text("frozen")
    page.add_and_run("lab.close()")
    expect(page.panel).to_contain_text("The laboratory drive is closed")
    expect(page.panel.get_by_role("button")).to_have_count(0)
    page.shot("panel-closed", page.panel)


def test_by_keyboard_alone(page):
    ready(page, "91-drive")
    page.button("freeze A").focus()
    page.window.keyboard.press("Enter")
    expect(page.state("A")).to_contain_text("frozen")
    expect(page.button("wake A")).to_be_enabled()
    page.window.keyboard.press("Tab")
    expect(page.button("wake A")).to_be_focused()
    page.shot("panel-focus", page.panel)
    page.window.keyboard.press("Space")
    expect(page.state("A")).to_contain_text("running")
    expect(page.button("wake A")).to_be_disabled()
    page.window.keyboard.press("Tab")
    expect(page.button("kill A")).to_be_focused()
    page.window.keyboard.press("Tab")
    page.window.keyboard.press("Space")
    expect(page.button("cut A from redis-1")).to_be_visible()
    page.window.keyboard.press("Tab")
    expect(page.button("cut A from redis-1")).to_be_focused()


def test_dark_and_on_a_projector(page):
    page.dark(True)
    try:
        ready(page, "92-failover")
        page.row("A").get_by_role("button", name="more").click()
        page.button("fail the primary").click()
        expect(page.panel).to_contain_text("primary: redis-2")
        page.shot("dark-1280")
        page.window.set_viewport_size({"width": PROJECTOR[0], "height": PROJECTOR[1]})
        page.panel.scroll_into_view_if_needed()
        page.shot("dark-1024")
        assert page.overflow() == []
    finally:
        page.dark(False)
    page.shot("light-1024")
