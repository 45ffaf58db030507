"""The root of what the supervisor raises: a sentence for the operator, facts as fields."""


class SupervisorError(Exception):
    """The machine did not do what was asked."""
