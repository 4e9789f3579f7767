"""What every profile document shares: strictness, sources, and what a source is worth."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Basis = Literal["measured", "fitted", "datasheet"]
"""What a number rests on: a measurement used as it stands, constants fitted to measurements, or a datasheet alone."""


class Frozen(BaseModel):
    """A frozen document part that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Source(Frozen):
    """Where constants come from."""

    basis: Basis
    """measured, fitted or datasheet."""
    text: str
    """The paper, table, datasheet, engine file or run, so that a reader can find it."""
