"""What a user asks of a plan: methods, pins, and what may stand together.

Others use `methods` (the classes that users name), `pins` and `pipeline_pins` (what is fixed, read
and checked), and `replay` (what may be asked beside a plan that is replayed).
"""
