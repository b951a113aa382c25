"""Pipeline schedules: which task each mesh runs when, as pure tables with closed forms.

A schedule is a `PipelineSchedule` in a file of its own; `registry` lists those that have a name
for users. Others use:

- `registry`: the schedules by name, and `make_schedule`, which makes a table;
- `pipeline_schedule.PipelineSchedule`: what every schedule answers;
- `schedule`: `Schedule`, `Task` and what a task depends on;
- `verify`, `clocks`, `in_flight`, `delay`, `text`: what can be said of any table.
"""
