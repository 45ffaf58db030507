"""What is wrong with a configuration, and where: the one error that reading settings may raise."""


class ConfigError(Exception):
    """A setting that cannot be used: one sentence of place, key, what is wrong, what is allowed."""

    def __init__(
        self,
        problem: str,
        *,
        source: str,
        key: str | None = None,
        allowed: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.problem, self.source, self.key, self.allowed = problem, source, key, allowed
        self.line, self.column = line, column
        super().__init__(str(self))

    @property
    def place(self) -> str:
        """Where to look: "/etc/inferenceosd/config.toml:12:5", "OLLAMA_HOST", "--listen"."""
        return ":".join(str(part) for part in (self.source, self.line, self.column) if part)

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key and self.key != self.source else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f"{self.place}: {key}{self.problem}{allowed}"
