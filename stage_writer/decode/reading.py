"""How JSON values are read into columns: the formats that a stream names, and whether it is lenient.

Rule: a `Reading` is for one value and its content; `at` gives the reading one level inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.settings.formats import EPOCH_DECIMALS, NO_FORMS, Forms, ValueFormat


@dataclass(frozen=True, slots=True)
class Reading:
    """``lenient`` is the stream's ``coerce``.

    With ``non_finite`` DOUBLE and FLOAT take the strings NaN, Infinity and -Infinity: the JSON of binary formats.
    """

    forms: Forms = NO_FORMS
    lenient: bool = False
    non_finite: bool = False

    def at(self, step: str) -> Reading:
        """The reading of a field, of an ARRAY's ``element`` or a MAP's ``value``."""
        return Reading(self.forms.at(step), self.lenient, self.non_finite)

    @property
    def format(self) -> ValueFormat | None:
        return self.forms.format

    @property
    def epoch_decimals(self) -> int | None:
        """For a time that is written as an epoch: the number of decimals of its unit."""
        return None if self.format is None else EPOCH_DECIMALS.get(self.format)

    @property
    def holds_json(self) -> bool:
        """Whether any value is kept as its JSON text."""
        return _holds_json(self.forms)


STRICT = Reading()


def _holds_json(forms: Forms) -> bool:
    return forms.format is ValueFormat.JSON or any(_holds_json(inner) for inner in forms.inner.values())
