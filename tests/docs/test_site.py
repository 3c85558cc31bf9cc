"""The documentation as a site: it builds without a warning and asks the network for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("mkdocs", reason="MkDocs is not installed (extra docs)")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_shown_without_the_network_and_without_errors(site, browser):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}"
    asked, wrong = set(), []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("request", lambda request: asked.add(request.url))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    paths = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    assert {".", "concepts", "commands", "api/problem"} <= set(paths)
    for path in paths:
        page.goto(f"{home}/{path}/")
        assert page.locator("h1").count() == 1, path
        for picture in page.locator("article img").all():
            assert picture.evaluate("image => image.complete && image.naturalWidth > 0"), path
        _keep(page, path)
    page.goto(home)
    page.locator("input.md-search__input").first.fill("ready-first")
    page.wait_for_selector(".md-search-result__item")
    server.shutdown()
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {
        urlsplit(home).netloc
    }
    assert wrong == []


def _keep(page, path):
    if (folder := os.environ.get("SCREENSHOTS")) and path in (
        ".",
        "concepts",
        "commands",
        "api/problem",
    ):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(
            path=f"{folder}/site-{path.replace('/', '-').replace('.', 'home')}.png",
            full_page=path == "concepts",
        )


@pytest.mark.slow
def test_the_command_reference_has_every_option(site):
    import typer

    from conductor.cli.app import app

    text = (site / "commands" / "index.html").read_text("utf-8")
    for name, command in typer.main.get_command(app).commands.items():
        assert f'id="conductor-{name}"' in text
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option == "--help" or f"<code>{option}</code>" in text, f"{name} {option}"
