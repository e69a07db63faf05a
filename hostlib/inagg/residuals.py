# SPDX-License-Identifier: Apache-2.0
"""The residuals of a rank's gradients, kept by parameter, because DDP may rearrange its buckets."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from inagg.errors import ConfigurationError


class Residuals:
    """For each parameter, a residual of the same size on the same device; zeros at first.

    `of` returns the residuals of a bucket in one flat tensor, the same tensor as long as the buckets do not change.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._place = {parameter: place for place, parameter in enumerate(parameters)}
        self._flats: dict[tuple[int, ...], torch.Tensor] = {}  # by the places of a bucket's parameters
        self._parts: dict[int, torch.Tensor] = {}  # of these, by the place of a parameter

    def places(self, parameters: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The indices of a bucket's parameters in the model. Raises ConfigurationError for one of another model."""
        try:
            return tuple(self._place[parameter] for parameter in parameters)
        except KeyError:
            raise ConfigurationError(
                "the hook's state was made for another model than the one that trains"
            ) from None

    def of(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The residuals of a bucket's parameters, concatenated; writes to the tensor are kept.

        Raises ConfigurationError for a parameter of another model.
        """
        places = self.places(parameters)
        flat = self._flats.get(places)
        if flat is None:
            sizes = [parameter.numel() for parameter in parameters]
            flat = torch.zeros(sum(sizes), dtype=torch.float32, device=parameters[0].device)
            for place, part in zip(places, torch.split(flat, sizes), strict=True):
                if place in self._parts:
                    part.copy_(self._parts[place])
                self._parts[place] = part
            self._flats = {
                others: kept for others, kept in self._flats.items() if not set(places) & set(others)
            }
            self._flats[places] = flat
        return flat

    def scale(self, factor: float) -> None:
        """Multiply all residuals."""
        for part in self._parts.values():
            part.mul_(factor)

    def snapshot(self) -> dict[int, torch.Tensor]:
        """A copy of the residuals, by the index of the parameter."""
        return {place: part.clone() for place, part in sorted(self._parts.items())}

    def restore(self, snapshot: Mapping[int, torch.Tensor]) -> None:
        """Restore a snapshot. Raises ConfigurationError if it is of other parameters; nothing has changed then."""
        sizes = {place: parameter.numel() for parameter, place in self._place.items()}
        for place, part in snapshot.items():
            if sizes.get(place) != part.numel():
                raise ConfigurationError(
                    f"the checkpoint has {part.numel()} elements of parameter {place}, the model "
                    f"{sizes.get(place, 'no such parameter')}"
                )
        self._flats = {}
        self._parts = {place: part.clone() for place, part in snapshot.items()}
