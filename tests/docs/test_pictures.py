"""The pictures of the documentation are those that the schedules give."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
DOCS = Path(__file__).parents[2] / "docs"


def test_the_pictures_are_up_to_date(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "pictures")
    from draw import draw

    draw(tmp_path)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in (DOCS / "pictures").glob("*.svg")}
    assert drawn.keys() == kept.keys()
    assert [name for name in kept if drawn[name] != kept[name]] == []
