"""A payout that happens once: the worker is killed after the money moved and before anybody heard of it.

It needs a cluster (`make up`) and a PostgreSQL: `.venv/bin/python examples/exactly_once_job.py --dsn postgresql://…`

A lock lets one worker at a time have the job, but a lock alone cannot do it: a worker may die, or be paused past the
end of its lock and go on. So the effect, the mark that it is done and the check of the fencing token are one
transaction. Who comes later finds the mark; who comes too late finds a token greater than its own and is refused.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys

from coordinator.client import HoldfastError, SqlGuard, StaleToken, SyncClient

TTL_S = 3.0
PATIENCE_S = 60.0
ENDPOINTS = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103"
NO_DATABASE = """\
This example writes to a PostgreSQL; say which with --dsn or $HOLDFAST_EXAMPLE_DSN. To have one for trying out:
  docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=example postgres:16
  … --dsn postgresql://postgres:example@127.0.0.1:5432/postgres
The driver comes with `pip install 'psycopg[binary]'`."""

try:
    import psycopg
except ImportError:
    sys.exit(NO_DATABASE)

GUARD = SqlGuard("example_jobs", key="job_id")  # the row of a job has the newest token beside the mark


def prepare(dsn: str, job: str) -> None:
    with psycopg.connect(dsn) as database:
        database.execute("CREATE TABLE IF NOT EXISTS example_accounts (owner TEXT PRIMARY KEY, cents BIGINT)")
        database.execute(
            "CREATE TABLE IF NOT EXISTS example_jobs "
            "(job_id TEXT PRIMARY KEY, done BOOLEAN DEFAULT false, last_fencing_token BIGINT DEFAULT 0)"
        )
        database.execute("INSERT INTO example_accounts VALUES (%s, 0)", (job,))
        database.execute("INSERT INTO example_jobs (job_id) VALUES (%s)", (job,))


def pay(dsn: str, job: str, token: int) -> str:
    """The effect, in one transaction with the mark and the check of the token."""
    with psycopg.connect(dsn) as database:
        # The row is ours from here to the commit, and only if no greater token was here before.
        GUARD.update(database, job, token, "job_id = job_id")
        if database.execute("SELECT done FROM example_jobs WHERE job_id = %s", (job,)).fetchone() == (True,):
            return "finds it done already, and only reports it"
        database.execute("UPDATE example_accounts SET cents = cents + 2500 WHERE owner = %s", (job,))
        database.execute("UPDATE example_jobs SET done = true WHERE job_id = %s", (job,))
    return "pays 25.00"


def worker(endpoints: str, dsn: str, job: str, name: str, die: bool) -> None:
    with SyncClient(endpoints) as client, client.lock(job, ttl=TTL_S) as held:
        print(f"    {name} has the job with token {held.token} and {pay(dsn, job, held.token)}", flush=True)
        if die:
            os.kill(os.getpid(), signal.SIGKILL)  # the money has moved; nobody was told
    print(f"    {name} reports the job as done", flush=True)


def story(endpoints: str, dsn: str) -> None:
    context = multiprocessing.get_context("spawn")
    job = f"example/payout/{os.getpid()}"
    prepare(dsn, job)
    for number, (name, die) in enumerate([("ada", True), ("ben", False)], 1):
        print(f"{number}. {name} takes the payout" + (", and is killed before it can say so." if die else " up again."))
        process = context.Process(target=worker, args=(endpoints, dsn, job, name, die), daemon=True)
        process.start()
        process.join(PATIENCE_S)
    with psycopg.connect(dsn) as database:
        (cents,) = database.execute("SELECT cents FROM example_accounts WHERE owner = %s", (job,)).fetchone() or (0,)
        print(f"3. The account has {cents / 100:.2f}: one payout, two workers.")
        try:
            pay(dsn, job, (GUARD.newest(database, job) or 0) - 1)
        except StaleToken as refused:
            print(f"4. Had ada been paused, not killed, and gone on now: {refused}")
    if cents != 2500:
        raise SystemExit("that is not one payout")


def main() -> int:
    parser = argparse.ArgumentParser(description="A payout that happens once, though its worker is killed.")
    parser.add_argument("--endpoints", default=ENDPOINTS, help="nodes of the cluster, separated by commas")
    parser.add_argument("--dsn", default=os.environ.get("HOLDFAST_EXAMPLE_DSN"), help="of a PostgreSQL")
    options = parser.parse_args()
    if options.dsn is None:
        print(NO_DATABASE, file=sys.stderr)
        return 1
    try:
        story(options.endpoints, options.dsn)
    except psycopg.OperationalError as error:
        print(f"{error}\n{NO_DATABASE}", file=sys.stderr)
        return 1
    except HoldfastError as error:
        print(f"no Holdfast cluster answers at {options.endpoints} ({error}); `make up` starts one", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
