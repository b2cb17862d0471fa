"""A reader as a data source of Grain's pipelines; Grain shuffles, shards, batches and checkpoints.

    import grain
    from atarirb.outputs.grain import Source

    source = Source(atarirb.open("data/Pong/1", frame_stack=4))
    batches = grain.MapDataset.source(source).shuffle(seed=0).batch(256).to_iter_dataset()

So Grain asks for one record at a time. Where nothing is done to single records, let it shuffle their numbers
and read each batch at once, which takes a fraction of the time:

    numbers = grain.MapDataset.range(len(source)).shuffle(seed=0).batch(256)
    batches = numbers.map(source.get).to_iter_dataset()

Grain's worker processes open the reader anew. Before they are used Grain wants absl's flags parsed, by
``absl.app.run`` or ``absl.flags.FLAGS.mark_as_parsed()``.

Nothing of Grain is needed to make a source: what Grain wants of one are these methods.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atarirb.arguments import as_index, positive
from atarirb.batch import Batch
from atarirb.errors import ArgumentError


class Source:
    """The valid steps of a reader, or all slices of them, as records.

    Record i is the transition of the i-th valid step, in the order of play, or the slice that begins at the
    i-th step at which a slice may begin. It is a nested dict of NumPy arrays as in `atarirb.batch`, without a
    batch axis. A source is pickled with its reader, which is opened again by its path. Its repr, by which
    Grain tells whether a checkpoint fits, names the dataset, the options and the steps, not the path.

    Args:
        reader: A reader, output "numpy"; what `select` gives for some of its episodes.
        slice_len: L, steps of a slice; None for transitions.

    Raises:
        ArgumentError: The reader has another output or no valid step, or no episode has L valid steps.
    """

    def __init__(self, reader: Any, slice_len: int | None = None):
        if reader._options.output != "numpy":
            raise ArgumentError(
                f"a source needs a reader with output='numpy', not {reader._options.output!r}; "
                f"arrays go to a device behind the pipeline"
            )
        self._reader = reader
        self._slice_len = None if slice_len is None else positive("slice_len", slice_len)
        self._legal = reader._legal(self._slice_len)

    def __len__(self) -> int:
        """Return the number of records."""
        return self._legal.total

    def get(self, numbers: Any) -> Batch:
        """Read records by their numbers, in the order asked for, repeats included.

        Args:
            numbers: As for `atarirb.reader.Reader.get`, of records.

        Returns:
            A batch: leaves [B, ...], or of slices [B, L, ...]; for a single int without the batch axis.

        Raises:
            StepIndexError, StepIndexTypeError, ArgumentError: As for `atarirb.reader.Reader.get`.
        """
        index, single = as_index(numbers, len(self), noun="record")
        batch = self._reader._gather(self._legal.at(index), self._slice_len)
        return _record(batch, 0) if single else batch

    __getitem__ = get

    def _getitems(self, numbers: Sequence[int]) -> list[Batch]:
        """Read several records at once: Grain's name for it, where it asks for that."""
        batch = self.get(numbers)
        return [_record(batch, place) for place in range(len(numbers))]

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self._reader, self._slice_len)

    def __repr__(self) -> str:
        of = {**self._reader._fingerprint(), "columns": self._reader._options.columns}
        return f"atarirb.Source({json.dumps(of)}, slice_len={self._slice_len})"


def _record(batch: Batch, place: int) -> Batch:
    """Take one row of every leaf; those of one axis become arrays of none."""
    return {
        name: _record(leaf, place) if isinstance(leaf, dict) else leaf[place, ...]
        for name, leaf in batch.items()
    }
