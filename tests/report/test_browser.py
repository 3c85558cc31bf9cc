"""The page in Chromium: it draws, answers to pointer and keys, and asks the network for nothing.

Screenshots go to the folder of the variable SCREENSHOTS, where it is set.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.interop.read_trace import read_trace
from conductor.problem.kind import Kind
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.report.colours import KIND_COLOURS
from conductor.report.page import write_page
from conductor.report.simulated import migrated, simulated
from conductor.report.traced import measured, traced
from conductor.schedules.registry import build

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page of entries; at the end nothing may have failed or been asked for."""
    contexts, wrong, asked = [], [], []

    def opened(entries, *, one_at_a_time=False, **settings):
        path = tmp_path / "report.html"
        write_page(entries, path, title="Conductor: test", one_at_a_time=one_at_a_time)
        context = browser.new_context(**{"viewport": DESKTOP, **settings})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert {url for url in asked if not url.startswith("data:")} == {
        (tmp_path / "report.html").as_uri()
    }


@pytest.fixture(scope="module")
def spec():
    return load_preset("gpt-like")


@pytest.fixture(scope="module")
def zero_bubble(spec):
    return simulated(spec, build("zb-1p", spec), title="zb-1p")


def place_of(entry, text):
    """The place of an action, and its program index, from its name."""
    timeline_ = entry.timeline
    names = [str(timeline_.schedule.action(int(i))) for i in timeline_.sequence]
    return names.index(text), int(timeline_.sequence[names.index(text)])


def point_of(page, place, chart=0):
    return page.evaluate(f"report.charts[{chart}].pointOf({place})")


def pixel(page, point):
    """The colour at a point of the window, as drawn."""
    return page.evaluate(
        """({x, y}) => {
          const canvas = document.querySelector(".chart.timeline canvas");
          const box = canvas.getBoundingClientRect();
          const scale = canvas.width / box.width;
          const at = [(x - box.left) * scale, (y - box.top) * scale].map(Math.round);
          const spot = new OffscreenCanvas(1, 1).getContext("2d");
          spot.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
          const [r, g, b] = spot.getImageData(0, 0, 1, 1).data;
          return "#" + [r, g, b].map((c) => c.toString(16).padStart(2, "0")).join("");
        }""",
        point,
    )


def tip_of(page):
    """Heading and rows of the tip."""
    terms, texts = page.locator("#tip dt"), page.locator("#tip dd")
    plain = [text.replace("\u00a0", " ") for text in texts.all_inner_texts()]
    rows = dict(zip(terms.all_inner_texts(), plain, strict=True))
    return page.locator("#tip strong").inner_text(), rows


def keep(page, name):
    """A screenshot for people to look at."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png")


def view_of(page):
    return page.evaluate("[report.view.min, report.view.max]")


def settle(page):
    """Two frames: what was asked for is drawn."""
    page.evaluate("() => new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")


def test_hover_shows_the_action_under_the_pointer(show, zero_bubble):
    page = show([zero_bubble])
    for name in ("0F0", "3I2", "1W7", "2F5"):
        place, index = place_of(zero_bubble, name)
        point = point_of(page, place)
        page.mouse.move(point["x"], point["y"])
        check_tip(zero_bubble, name, index, *tip_of(page))


def check_tip(entry, name, index, heading, rows):
    drawn = entry.timeline
    action = drawn.schedule.action(index)
    start, end = drawn.start_ms[index], drawn.end_ms[index]
    assert heading.startswith(f"{name}: ")
    assert rows["rank"] == str(drawn.program.ranks[index])
    assert (rows["stage"], rows["micro-batch"]) == (str(action.stage), str(action.microbatch))
    assert rows["start"] == f"{start:.2f} ms"
    assert rows["end"] == f"{end:.2f} ms"
    assert rows["duration"] == f"{end - start:.2f} ms"
    waited = float(drawn.idle_before_ms[index].sum())
    assert rows["waited"].startswith(f"{waited:.2f} ms for " if waited else "not at all")


def test_hover_says_what_was_waited_for(show, zero_bubble):
    page = show([zero_bubble])
    point = point_of(page, place_of(zero_bubble, "1F0")[0])
    page.mouse.move(point["x"], point["y"])
    assert tip_of(page)[1]["waited"] == (
        "10.40 ms for the previous stage: 0F0 on rank 0, ended at 10.00 ms"
    )


def test_hover_over_idle_time_says_why(show, zero_bubble):
    page = show([zero_bubble])
    point = point_of(page, place_of(zero_bubble, "3F0")[0])
    left = page.evaluate("report.charts[0].plot.over.getBoundingClientRect().left")
    page.mouse.move(left + 3, point["y"])
    heading, rows = tip_of(page)
    assert heading == "idle"
    assert rows["why"].startswith("waits for the previous stage: 2F0 on rank 2")
    assert (rows["next"], rows["duration"]) == ("3F0", "31.20 ms")


def test_hover_over_memory_shows_level_and_limit(show, zero_bubble):
    page = show([zero_bubble])
    box = page.evaluate("report.charts[1].plot.over.getBoundingClientRect().toJSON()")
    page.mouse.move(box["left"] + box["width"] * 35 / 259.8, box["top"] + 4)
    heading, rows = tip_of(page)
    assert heading == "memory of rank 0"
    assert (rows["holds"], rows["peak"], rows["limit"]) == ("4", "4", "4")


def test_actions_are_drawn_where_hover_finds_them_in_the_colour_of_their_kind(show, zero_bubble):
    page = show([zero_bubble])
    for name in ("0F1", "2I3", "1W5"):
        point = point_of(page, place_of(zero_bubble, name)[0])
        colour = pixel(page, {"x": point["x"], "y": point["y"] - 12})  # above the label
        assert colour == KIND_COLOURS[Kind[name[1]]]


def test_overlapping_pairs_stand_one_above_the_other(show, spec):
    entry = simulated(spec, build("dualpipe-v", spec.with_(memory_limit=None)), title="pairs")
    page = show([entry])
    sequence, overlaps = entry.timeline.sequence, entry.timeline.schedule.overlaps
    first = int(np.flatnonzero(overlaps[sequence])[0])
    for place in (first, first + 1):
        point = point_of(page, place)
        page.mouse.move(point["x"], point["y"])
        name = str(entry.timeline.schedule.action(int(sequence[place])))
        assert tip_of(page)[0].startswith(f"{name}: ")


def test_zoom_by_button_wheel_and_double_click_keeps_what_is_pointed_at(show, zero_bubble):
    page = show([zero_bubble])
    whole = view_of(page)
    assert whole == pytest.approx([0.0, zero_bubble.timeline.makespan_ms])
    page.click("#in")
    settle(page)
    assert np.diff(view_of(page)) == pytest.approx(np.diff(whole) / 2)
    place, _ = place_of(zero_bubble, "2I3")
    before = point_of(page, place)
    page.mouse.move(before["x"], before["y"])
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    settle(page)
    assert np.diff(view_of(page)) < np.diff(whole) / 4
    # The pointer's place is in whole pixels.
    assert point_of(page, place)["x"] == pytest.approx(before["x"], abs=4)
    page.mouse.dblclick(before["x"], before["y"])
    settle(page)
    assert point_of(page, place)["x"] == pytest.approx(before["x"], abs=8)
    page.mouse.move(before["x"], before["y"] + 1)
    assert tip_of(page)[0].startswith("2I3: ")
    keep(page, "zoomed")
    page.click("#fit")
    settle(page)
    assert view_of(page) == pytest.approx(whole)


def test_a_plain_wheel_leaves_the_charts_alone(show, zero_bubble):
    page = show([zero_bubble])
    point = point_of(page, 0)
    page.mouse.move(point["x"], point["y"])
    page.mouse.wheel(0, 300)
    settle(page)
    assert view_of(page) == pytest.approx([0.0, zero_bubble.timeline.makespan_ms])


def test_dragging_pans_all_charts_and_stops_at_the_ends(show, zero_bubble, spec):
    other = simulated(spec, build("1f1b", spec), title="1f1b")
    page = show([zero_bubble, other], viewport={"width": 1280, "height": 1400})
    page.click("#in")
    settle(page)
    start = view_of(page)
    place, _ = place_of(zero_bubble, "2I3")
    point = point_of(page, place)
    page.mouse.move(point["x"], point["y"])
    page.mouse.down()
    page.mouse.move(point["x"] + 100, point["y"], steps=5)
    settle(page)
    assert point_of(page, place)["x"] == pytest.approx(point["x"] + 100, abs=1.5)
    scales = page.evaluate("report.charts.map((c) => [c.plot.scales.x.min, c.plot.scales.x.max])")
    assert scales == [pytest.approx(view_of(page))] * 4
    assert view_of(page)[0] < start[0]
    page.mouse.move(point["x"] + 1000, point["y"], steps=5)
    page.mouse.up()
    settle(page)
    assert view_of(page)[0] == 0.0
    assert np.diff(view_of(page)) == pytest.approx(np.diff(start))


def test_keys_go_from_action_to_action_and_say_what_they_find(show, zero_bubble):
    page = show([zero_bubble])
    page.locator(".chart.timeline").focus()
    names = []
    for key in ("Home", "ArrowRight", "ArrowDown", "ArrowLeft", "End", "ArrowUp"):
        page.keyboard.press(key)
        names.append(page.locator("#status").inner_text().split(":")[0])
    assert names == ["0F0", "0F1", "1F0", "1F0", "1W7", names[-1]]
    assert names[-1].startswith("0")
    settle(page)
    assert not page.locator("#tip").is_hidden()
    page.keyboard.press("+")
    settle(page)
    assert np.diff(view_of(page)) == pytest.approx(zero_bubble.timeline.makespan_ms / 2)
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    settle(page)
    assert page.locator("#tip").is_hidden()


def test_every_control_is_reached_by_tab_and_named(show, zero_bubble):
    page = show([zero_bubble])
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText")
        )
    assert reached == [
        "zoom in", "zoom out", "fit", "critical path", "idle causes", "memory", "light / dark",
        "Timeline of zb-1p: arrow keys go from action to action", "How to read and use this page",
    ]  # fmt: skip


def test_the_critical_path_is_shown_on_demand(show, spec):
    entry = simulated(spec, build("1f1b", spec), title="1f1b")
    page = show([entry])
    path = set(entry.timeline.critical_path.tolist())
    sequence = entry.timeline.sequence
    off = next(place for place, i in enumerate(sequence) if int(i) not in path)
    on = next(place for place, i in enumerate(sequence) if int(i) in path)
    points = [point_of(page, place) for place in (on, off)]
    spots = [{"x": point["x"], "y": point["y"] - 12} for point in points]
    before = [pixel(page, spot) for spot in spots]
    page.click("#path")
    settle(page)
    assert page.locator("#path").get_attribute("aria-pressed") == "true"
    after = [pixel(page, spot) for spot in spots]
    assert after[0] == before[0]
    assert after[1] != before[1]
    page.mouse.move(**points[0])
    assert tip_of(page)[1]["critical path"] == "on it"
    page.mouse.move(**points[1])
    assert "critical path" not in tip_of(page)[1]
    keep(page, "critical-path")


def test_idle_shading_and_memory_can_be_hidden(show, zero_bubble):
    page = show([zero_bubble])
    point = point_of(page, place_of(zero_bubble, "3F0")[0])
    spot = {"x": point["x"] - 60, "y": point["y"]}
    assert pixel(page, spot) != "#000000"  # nothing drawn reads as transparent black
    page.click("#idle")
    settle(page)
    assert pixel(page, spot) == "#000000"
    assert page.locator(".chart.memory").is_visible()
    page.keyboard.press("m")
    assert not page.locator(".chart.memory").is_visible()


def test_dark_follows_the_system_and_the_switch(show, zero_bubble):
    page = show([zero_bubble], color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    ink = page.evaluate("report.theme.ink")
    keep(page, "dark")
    page.click("#theme")
    assert page.evaluate(paper) != dark
    assert page.evaluate("report.theme.ink") != ink
    keep(page, "light")
    page.click("#theme")
    assert page.evaluate(paper) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(paper) == dark  # the switch stays


def test_a_comparison_has_one_axis_and_can_show_one_at_a_time(show, zero_bubble, spec):
    other = simulated(spec, build("1f1b", spec), title="1f1b")
    run = measured(other.timeline, title="measured")
    page = show([zero_bubble, other, run], viewport={"width": 1280, "height": 1700})
    assert page.locator("h2").all_inner_texts() == ["zb-1p", "1f1b", "measured"]
    assert view_of(page)[1] == pytest.approx(other.timeline.makespan_ms)
    assert page.locator("tbody th").all_inner_texts() == ["zb-1p", "1f1b", "measured"]
    column = page.locator("tbody td:nth-child(2)")
    assert column.all_inner_texts() == ["259.80 ms", "303.40 ms", "303.40 ms"]
    assert page.locator("tbody td.best:nth-child(2)").all_inner_texts() == ["259.80 ms"]
    keep(page, "comparison")
    page.locator("#one").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("h2:visible").all_inner_texts() == ["1f1b"]
    assert page.locator("#one-name").inner_text() == "1f1b"
    page.keyboard.press("Home")
    assert page.locator("h2:visible").count() == 3


def test_steps_of_a_measured_run_are_turned_over_with_the_slider(show, shared_data):
    trace = read_trace(shared_data / "straggler-traces" / "trace-AR.parquet")
    entries = traced(trace, title="job", num_steps=5)
    page = show(entries, one_at_a_time=True)
    shown = page.locator("h2:visible")
    for entry in entries:
        assert shown.all_inner_texts() == [entry.title]
        chart = entries.index(entry) * 2
        place = int(np.flatnonzero(entry.timeline.program.ranks == 2)[5])
        point = point_of(page, place, chart)
        page.mouse.move(point["x"], point["y"])
        index = int(entry.timeline.sequence[place])
        assert tip_of(page)[1]["start"] == f"{entry.timeline.start_ms[index]:.2f} ms"
        page.locator("#one").press("ArrowRight")
        settle(page)
    keep(page, "measured")


def test_migrations_are_arrows_and_hover_says_who_helps_whom(show):
    spec = load_preset("paper")
    entry = migrated(spec, build("zb-1p", spec), title="migrating")
    page = show([entry])
    helps = entry.helps
    longest = int(np.argmax(helps.end_ms - helps.start_ms))
    lender = int(helps.lenders[longest])
    middle = (helps.start_ms[longest] + helps.end_ms[longest]) / 2
    point = page.evaluate(
        f"""() => {{
          const chart = report.charts[0];
          const box = chart.plot.over.getBoundingClientRect();
          return {{ x: box.left + chart.plot.valToPos({middle}, "x"),
                    y: box.top + {lender + 0.5} / 4 * box.height }};
        }}"""
    )
    page.mouse.move(**point)
    heading, rows = tip_of(page)
    action = entry.timeline.schedule.action(int(helps.actions[longest]))
    assert heading.startswith(f"helps with {action} on rank ")
    assert rows["rank"] == str(lender)
    assert rows["does"] == f"{helps.parts[longest]} of 32 parts"
    keep(page, "migration")
    drawn = "document.querySelector('.chart.timeline canvas').toDataURL()"
    with_arrows = page.evaluate(drawn)
    page.click("#helps")
    settle(page)
    assert page.evaluate(drawn) != with_arrows


def test_at_phone_width_nothing_is_cut_off_and_fingers_pan_and_pinch(show, zero_bubble):
    page = show(
        [zero_bubble], viewport=PHONE, device_scale_factor=2, is_mobile=True, has_touch=True
    )
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    keep(page, "phone")
    box = page.locator("#in").bounding_box()
    assert box["height"] >= 30
    page.tap("#in")
    settle(page)
    before = view_of(page)
    page.evaluate("window.scrollTo(0, document.querySelector('.chart').offsetTop - 300)")
    over = page.evaluate("report.charts[0].plot.over.getBoundingClientRect().toJSON()")
    y = over["top"] + 10
    touch = page.context.new_cdp_session(page)

    def send(kind, *xs):
        points = [{"x": x, "y": y, "id": i} for i, x in enumerate(xs)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", 200)
    for x in (190, 170, 150):
        send("touchMove", x)
    send("touchEnd")
    settle(page)
    assert view_of(page)[0] > before[0]
    before = view_of(page)
    send("touchStart", 150, 200)
    for reach in (10, 25, 50):
        send("touchMove", 150 - reach, 200 + reach)
    send("touchEnd")
    settle(page)
    assert np.diff(view_of(page)) < 0.6 * np.diff(before)


def test_a_plan_of_the_command_line_is_read_at_phone_width_in_the_dark(
    browser, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["report", "--preset", "gpt-like", "--schedule", "zb-1p", "--schedule", "1f1b"]) == 0
    )
    context = browser.new_context(viewport=PHONE, color_scheme="dark", device_scale_factor=2)
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    # Each name stands on one line, and the last column is reached by scrolling the table alone.
    heights = page.locator("tbody th").evaluate_all("cells => cells.map((c) => c.scrollHeight)")
    assert max(heights) < 35
    last = page.locator("tbody tr:first-child td:last-child")
    last.scroll_into_view_if_needed()
    assert last.bounding_box()["x"] < PHONE["width"]
    point = point_of(page, 0)
    page.mouse.move(point["x"], point["y"])
    assert tip_of(page)[0] == "0F0: forward"
    tip = page.locator("#tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= PHONE["width"]
    keep(page, "phone-dark")
    context.close()


def test_a_limit_is_named_only_where_there_is_one(show, spec, zero_bubble):
    free = spec.with_(memory_limit=None)
    page = show([zero_bubble, simulated(free, build("zb-1p", free), title="free")])
    labels = page.locator(".label.memory").all_inner_texts()
    assert labels == ["memory by rank, and its limit", "memory by rank"]


def test_names_are_shown_as_text(show, spec):
    title = "<img src=x onerror=alert(1)>"
    page = show([simulated(spec, build("1f1b", spec), title=title)])
    assert page.locator("h2").inner_text() == title
    assert page.locator("img").count() == 0


def test_98_thousand_actions(show, capsys):
    """64 ranks x 512 micro-batches: its times are printed, and what hover says holds there too."""
    spec = PipelineSpec(
        num_ranks=64, num_microbatches=512, forward_ms=10.4, backward_input_ms=10.2,
        backward_weight_ms=7.7, transfer_ms=0.4, freed_at_backward_input=0.5, memory_limit=64.0,
    )  # fmt: skip
    schedule = build("zb-1p", spec)
    began = perf_counter()
    entry = simulated(spec, schedule, title="64 ranks")
    page = show([entry])
    opened = float(page.locator("body").get_attribute("data-ready"))
    assert len(entry.timeline.start_ms) == 98_304
    place, _ = place_of(entry, "40F300")
    size = page.evaluate("document.documentElement.outerHTML.length")
    frames = {}
    for zoom in (0.5, 0.02):
        page.evaluate(f"report.view.fit(), report.view.zoom({zoom})")
        settle(page)
        frames[zoom] = page.evaluate(
            """async () => {
              const times = [];
              let last = performance.now();
              const span = report.view.max - report.view.min;
              for (let k = 0; k < 40; k++) {
                report.view.pan((k < 20 ? 1 : -1) * span / 60);
                await new Promise(requestAnimationFrame);
                times.push(performance.now() - last);
                last = performance.now();
              }
              return times;
            }"""
        )
    page.evaluate(
        f"report.view.set(report.entries[0].start[{place}] - 50, report.entries[0].end[{place}] + 50)"
    )
    page.evaluate(f"window.scrollTo(0, report.charts[0].pointOf({place}).y - 400)")
    settle(page)
    point = point_of(page, place)
    page.mouse.move(point["x"], point["y"])
    assert tip_of(page)[0] == "40F300: forward"
    keep(page, "98-thousand-actions")
    assert size < 15e6
    with capsys.disabled():
        # The first frame of each also draws what the zoom changed.
        panning = {zoom: np.quantile(times[1:], (0.5, 0.95)) for zoom, times in frames.items()}
        print(
            f"\n98,304 actions: simulated, written and opened in {perf_counter() - began:.1f} s;"
            f" page {size / 1e6:.1f} MB, drawn {opened / 1000:.2f} s after opening; a frame of panning"
            f" takes {panning[0.5][0]:.0f} ms (95 %: {panning[0.5][1]:.0f}) at half and"
            f" {panning[0.02][0]:.0f} ms (95 %: {panning[0.02][1]:.0f}) at a fiftieth of the step"
        )
