"""The one writer of an embedded database, with group commit.

Owns the transactions. A commit costs a flush of the disk however much is in it, so the writer takes
all the calls that wait, runs them in order in one transaction, and answers all of them after its
commit:

    BEGIN IMMEDIATE · call 1 · call 2 · … · call n · COMMIT · n answers

A call that raises undoes its own writes and nobody else's. A fault of the database undoes the
group: then every call of it is refused, also those that were to be refused otherwise, since they
may have seen what is undone now.
"""

from __future__ import annotations

import sqlite3

from innkeeper_server.store.faults import FAULTS, is_own, leaves_doubt, unavailable
from innkeeper_server.store.lane import Call, Lane

__all__ = ["Writer"]


class Writer(Lane):
    """Serves calls in groups, each one transaction. Holds the file for this host until it ends."""

    name = "innkeeper-store-writer"

    def _connect(self) -> sqlite3.Connection:
        return self._database.writer()

    def _serve(self, calls: list[Call]) -> None:
        try:
            connection = self._ready()
            connection.execute("BEGIN IMMEDIATE")
            for call in calls:
                _run(call, connection)
            connection.execute("COMMIT")
        except FAULTS as fault:
            self._undo(fault)
            for call in calls:
                call.error = unavailable(fault)

    def _undo(self, fault: Exception) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()
        if leaves_doubt(fault):
            self._drop()

    def _end(self) -> None:
        self._drop()
        self._database.release()
        super()._end()


def _run(call: Call, connection: sqlite3.Connection) -> None:
    connection.execute("SAVEPOINT call")
    try:
        call.result = call.operation(connection)
    except Exception as error:
        if not is_own(error):
            raise
        call.error = error
        connection.execute("ROLLBACK TO call")
    connection.execute("RELEASE call")
