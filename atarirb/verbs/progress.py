"""How far long work has come, in bytes or steps, with rate and time left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tqdm import tqdm


@contextlib.contextmanager
def meter(
    what: str, total: int, shown: bool, unit: str = "B", done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, if that is wanted and stderr is a terminal.

    Args:
        what: The work's name.
        total: Bytes in all, or what else is counted.
        shown: Whether it is wanted.
        unit: What is counted.
        done: What was done before; no rate is made of it.

    Yields:
        What is to be called with the count done since the last call, from any thread.
    """
    disable = None if shown else True
    with tqdm(total=total, initial=done, unit=unit, unit_scale=True, desc=what, disable=disable) as bar:
        lock = threading.Lock()

        def on_done(count: int) -> None:
            with lock:
                bar.update(count)

        yield on_done
