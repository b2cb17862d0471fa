"""Workers of a Dask cluster: one of this machine's cores, or one that is there already."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from atarirb.arguments import positive
from atarirb.errors import ArgumentError, ExecutorError, MissingPackageError
from atarirb.threads import cores

if TYPE_CHECKING:
    from distributed import Client

#: Seconds that a scheduler has to answer, and that its first worker has to appear.
TIMEOUT = 20.0
#: What stands for a cluster of this machine's cores.
LOCAL = "local"
#: What a worker of a local cluster is started with. Dask's own default also has malloc give all memory back
#: at once (MALLOC_TRIM_THRESHOLD_), which costs a fifth of the rate and more.
_ENVIRONMENT = {f"{library}_NUM_THREADS": 1 for library in ("OMP", "MKL", "OPENBLAS")}
#: What a worker of a local cluster runs first: an interrupt is this process' to deal with, which ends it.
_DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextlib.contextmanager
def connected(address: str, workers: int | None = None) -> Iterator[Executor]:
    """Have the workers of a Dask cluster for a while.

    Args:
        address: Its scheduler's, as ``tcp://host:8786``; "local" makes a cluster of processes on this
            machine, which ends with the block.
        workers: Processes of a local one; None for one per core.

    Yields:
        What runs calls there.

    Raises:
        ExecutorError: Nobody answers there, or there are no workers.
        ArgumentError: That is no address, or a number of workers was given with one.
        MissingPackageError: Dask is not installed.
    """
    try:
        import distributed
    except ImportError as error:
        raise MissingPackageError.needed("distributed", purpose="a Dask cluster", extra="cluster") from error
    if address != LOCAL and workers is not None:
        raise ArgumentError(f"workers is {workers}, and the cluster at {address} has as many as it has")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        if address == LOCAL:
            count = cores() if workers is None else positive("workers", workers)
            client = _local(distributed, count, stack)
        else:
            client = _remote(distributed, address, stack)
        yield client.get_executor()


def _local(distributed: Any, count: int, stack: contextlib.ExitStack) -> Client:
    import dask

    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="atarirb-dask-"))
    settings = {"temporary-directory": scratch, "distributed.nanny.pre-spawn-environ": _ENVIRONMENT}
    stack.enter_context(dask.config.set(settings))
    try:
        cluster = distributed.LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            memory_limit=0,  # what of a dataset is mapped would be counted
            dashboard_address="127.0.0.1:0",  # any port, as another cluster may have the usual one
            preload=_DEAF,
            silence_logs=logging.CRITICAL,
        )
    except RuntimeError as error:
        raise ExecutorError(f"no Dask cluster could be started on this machine: {error}") from error
    stack.enter_context(cluster)
    return stack.enter_context(distributed.Client(cluster))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Have nothing logged of what Dask does: what fails is told by an error."""
    names = ("distributed", "distributed.client")  # what is logged elsewhere comes to the first
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.propagate, logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.propagate, logger.handlers = False, [logging.NullHandler()]
    try:
        yield
    finally:
        for logger, (propagate, handlers) in zip(loggers, before, strict=True):
            logger.propagate, logger.handlers = propagate, handlers


def _remote(distributed: Any, address: str, stack: contextlib.ExitStack) -> Client:
    try:
        client = stack.enter_context(distributed.Client(address, timeout=TIMEOUT))
    except ValueError as error:
        raise ArgumentError(f"{address!r}: {error}; expected an address, as tcp://host:8786") from error
    except Exception as error:  # what is no scheduler may answer anything
        raise ExecutorError(
            f"{address}: no scheduler of a Dask cluster answers there: {type(error).__name__}: {error}"
        ) from error
    try:
        client.wait_for_workers(1, timeout=TIMEOUT)
    except TimeoutError as error:
        raise ExecutorError(f"{address}: the Dask cluster has no workers; start one there") from error
    return client
