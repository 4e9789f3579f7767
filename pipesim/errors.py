"""The errors that pipesim raises for what a person gave it; none of them is a bug in pipesim."""


class PipesimError(ValueError):
    """Base of every error that is an answer to bad input. Its text is one complete message."""


class UsageError(PipesimError):
    """A flag or an argument that no box and no model could satisfy."""

    def __init__(self, name: str, given: object, wanted: str) -> None:
        super().__init__(f"{name}: {given!r} was given, {wanted} is wanted")
        self.name = name
        self.given = given
        self.wanted = wanted


class ProfileError(PipesimError):
    """A profile or a measured-run file that cannot be used."""

    def __init__(self, file: object, key: str, given: str, wanted: str, hint: str = "") -> None:
        self.file, self.key, self.given, self.wanted, self.hint = file, key, given, wanted, hint
        where = f"{file}: {key}" if key else f"{file}"
        super().__init__(f"{where}: {given} was given, {wanted} is wanted" + (f" ({hint})" if hint else ""))


class InfeasibleDeployment(PipesimError):  # noqa: N818 - it is an answer, not a failure
    """A deployment that this box cannot run. `reasons` are sentences for a person."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(" ".join(reasons))
        self.reasons = reasons


class MissingEvidence(PipesimError):  # noqa: N818 - named after what is missing
    """A price was asked for which the hardware profile holds no constant."""

    def __init__(self, profile: str, key: str, wanted: str) -> None:
        super().__init__(f"hardware profile {profile}: {key}: nothing was given, {wanted} is wanted")
        self.key = key
