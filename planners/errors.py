"""The root of everything that planners raise: a sentence for the operator, facts as fields."""


class PlanError(Exception):
    """A planner was given something it cannot answer for."""
