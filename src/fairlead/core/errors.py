"""The error for input that is refused."""


class Refused(Exception):
    """Input is refused. `problem` says what is wrong with the field and what to do."""

    def __init__(self, field: str, problem: str, code: str = "invalid") -> None:
        # Pass all three to Exception, so that a copied or pickled refusal keeps them.
        super().__init__(field, problem, code)
        self.field = field
        self.problem = problem
        self.code = code

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"
