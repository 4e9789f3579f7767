"""The errors that pipesim raises for what a person gave it; none of them is a bug in pipesim."""


class PipesimError(ValueError):
    """Base of every error that is an answer to bad input. Its text is one complete message."""


class UsageError(PipesimError):
    """A flag or an argument that no box and no model could satisfy."""

    def __init__(self, name: str, given: object, wanted: str) -> None:
        # args are those of the constructor: SimPy makes an exception anew from them when a process fails.
        super().__init__(name, given, wanted)
        self.name, self.given, self.wanted = name, given, wanted

    def __str__(self) -> str:
        return f"{self.name}: {self.given!r} was given, {self.wanted} is wanted"


class ProfileError(PipesimError):
    """A profile or a measured-run file that cannot be used."""

    def __init__(self, file: object, key: str, given: str, wanted: str, hint: str = "") -> None:
        super().__init__(file, key, given, wanted, hint)
        self.file, self.key, self.given, self.wanted, self.hint = file, key, given, wanted, hint

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else f"{self.file}"
        return f"{where}: {self.given} was given, {self.wanted} is wanted" + (f" ({self.hint})" if self.hint else "")


class InfeasibleDeployment(PipesimError):  # noqa: N818 - it is an answer, not a failure
    """A deployment that this box cannot run. `reasons` are sentences for a person."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return " ".join(self.reasons)


class MissingEvidence(PipesimError):  # noqa: N818 - named after what is missing
    """A price was asked for which the hardware profile holds no constant."""

    def __init__(self, profile: str, key: str, wanted: str) -> None:
        super().__init__(profile, key, wanted)
        self.profile, self.key, self.wanted = profile, key, wanted

    def __str__(self) -> str:
        return f"hardware profile {self.profile}: {self.key}: nothing was given, {self.wanted} is wanted"


class UnpredictableRun(PipesimError):  # noqa: N818 - it is an answer: the run was measured, pipesim holds it impossible
    """A measured run whose split, box or load pipesim refuses."""

    def __init__(self, run: str, reason: str) -> None:
        super().__init__(run, reason)
        self.run, self.reason = run, reason

    def __str__(self) -> str:
        return f'run "{self.run}": {self.reason}'
