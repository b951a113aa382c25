"""The evaluation of the Alpa paper in simulation; nothing here is measured."""
