"""The pictures of the documentation are as the code draws them now."""

from __future__ import annotations

import pytest
from tools.pictures import FOLDER, pictures, planned


@pytest.mark.slow
def test_the_pictures_are_those_that_the_code_draws(request: pytest.FixtureRequest) -> None:
    drawn = pictures(planned())
    if request.config.getoption("--update-goldens"):
        for name, text in drawn.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert {name for name in drawn | there if drawn.get(name) != there.get(name)} == set()
