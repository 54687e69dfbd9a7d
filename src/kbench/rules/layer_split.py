"""Which layers llama.cpp gives to which GPU by ``-ngl`` and ``-ts``: their caches, and weights that no override names.

It counts positions: one for each layer and one for the output. The last ``-ngl`` of them go to the GPUs, to each a run
as long as its part in ``-ts``:

    position   0 1 2 3 4 5 6 7 8        8 layers and the output
    -ngl 6     - - - a a a a b b        -ts 4,2

With parts that are counts, which add up to ``-ngl``, the division there is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Where an attention is matters for its cache; the output has none, and an override moves its weights.
_LAYER_COST, _OUTPUT_COST = 2, 1


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """``places[i]``: the GPU's position in the list of used ones for layer i, and last for the output; -1: the CPU."""

    places: tuple[int, ...]
    n_gpus: int

    @property
    def n_gpu_layers(self) -> int:
        """The value of ``-ngl``."""
        return sum(place >= 0 for place in self.places)

    @property
    def parts(self) -> tuple[int, ...]:
        """The value of ``-ts``."""
        return tuple(self.places.count(gpu) for gpu in range(self.n_gpus))


def layer_split(homes: Sequence[int], output: int, n_gpus: int) -> LayerSplit:
    """The split that puts most layers where they should be.

    Args:
        homes: of each layer, where its attention is: position of a GPU, or -1 for the CPU.
        output: the same of the head.
        n_gpus: how many GPUs there are; with none, everything is on the CPU.
    """
    if n_gpus == 0:
        return LayerSplit((-1,) * (len(homes) + 1), 0)
    wanted = [*homes, output]
    # best[p]: (how much is wrong, the places) of the positions so far, the last of which is at p. Places never go back.
    best: dict[int, tuple[int, tuple[int, ...]]] = {-1: (0, ())}
    for position, home in enumerate(wanted):
        last = position == len(homes)
        cost = _OUTPUT_COST if last else _LAYER_COST
        step: dict[int, tuple[int, tuple[int, ...]]] = {}
        for place in range(0 if last else -1, n_gpus):  # with any -ngl but 0 the output is on a GPU
            wrong, places = min(before for at, before in best.items() if at <= place)
            step[place] = (wrong + cost * (place != home), (*places, place))
        best = step
    return LayerSplit(min(best.values())[1], n_gpus)
