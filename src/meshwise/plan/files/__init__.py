"""The JSON form of plans: written, read, and earlier versions turned into the present one.

`json_form` is what `plan.Plan` uses; `json_decision` and `json_mesh` are of parts of a plan.
"""
