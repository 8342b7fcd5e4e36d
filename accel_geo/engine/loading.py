"""How loading processes start: from a server without threads where they can, as forks of this process where they must."""

import multiprocessing
import pickle
import sys
import types

MOST_SENT = 2**28  # bytes of the data that each loading process gets a copy of


class _Worker(multiprocessing.context.ForkServerProcess):
    """A process of a server, without the script that runs here: it would be run again, once for each worker."""

    @staticmethod
    def _Popen(process: multiprocessing.Process) -> object:  # noqa: N802  multiprocessing's name
        script, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            return multiprocessing.context.ForkServerProcess._Popen(process)
        finally:
            sys.modules["__main__"] = script


class _Scan:
    """A file for pickling that keeps nothing, and refuses what had better not be sent."""

    size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if b"__main__" in bytes(data) or self.size > MOST_SENT:
            raise pickle.PicklingError("to be inherited")


class _Server(multiprocessing.context.ForkServerContext):
    Process = _Worker


def loading_context(chips: object) -> multiprocessing.context.BaseContext | None:
    """Return how processes that load chips start: a context of multiprocessing, or None for the system's own way.

    Beside the threads of training a fork may copy a lock that one of them holds, and then the worker waits for ever:
    seen once in some thousand forks. So workers are forked from a server that has loaded the modules and runs no
    threads. But only a fork of this process inherits what cannot be sent, such as a lambda or what the script that runs
    here or a notebook defines, and shares what would be large to send, such as chips that are kept in memory.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    try:
        pickle.Pickler(_Scan()).dump(chips)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    context = _Server()
    context.set_forkserver_preload(["accel_geo.data.chips", "accel_geo.data.formats", "datasets"])
    return context
