"""`docs/primitives.md` says what the rules say, and leaves no primitive of JAX out."""

from __future__ import annotations

import jax
import pytest

from meshwise.jax_compat.jaxprs import CALL_BODIES
from meshwise.rules.table import RULES
from meshwise.rules.unruled import WHY_UNRULED
from rule_cases.document import CONTROL_FLOW, PATH, document, public_names


def test_each_public_primitive_has_one_fate() -> None:
    fates = [*RULES, *CALL_BODIES, *CONTROL_FLOW, *WHY_UNRULED]
    assert sorted(set(fates)) == sorted(fates)
    assert public_names() <= set(fates)


def test_the_page_is_up_to_date() -> None:
    text = PATH.read_text(encoding="utf-8")
    if f"for JAX {jax.__version__}." not in text:
        pytest.skip("the page was written for another JAX")
    assert text == document(), "run `python -m rule_cases.document` in tests/"
