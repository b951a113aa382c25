"""Helpers of these tests lie next to them; problems of stages beside those of `inter/`."""

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "inter"), str(_HERE.parent)]
