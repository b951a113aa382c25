"""Helpers of these tests lie next to them."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
