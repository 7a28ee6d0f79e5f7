"""`python -m tests.chaos --minutes N --seed S`: a run with faults on a cluster of its own in a temporary
folder, or on one that runs already (`--coordinator URL --kafka HOST:PORT`, and `--data-dir DIR` to find its
processes).

Ends with exit status 0 and a summary when no answer differed from the source and everything got fresh again;
with 1 and the first difference otherwise; with 2 when it could not begin; with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from deploy.cluster import LocalCluster
from keytide.cli.admin import Admin
from keytide.cli.data_folder import read_state, running_pid
from keytide.errors import KeytideError
from tests.chaos.driver import Driver, Plan
from tests.chaos.faults import KINDS
from tests.chaos.run import Run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Writers, readers, builds and faults."
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long (default: 3)")
    parser.add_argument(
        "--seed", type=int, default=1, help="what is tried and when follows from it (default: 1)"
    )
    parser.add_argument("--faults", default="all", help=f"all, none, or some of {','.join(KINDS)}")
    parser.add_argument(
        "--coordinator", help="URL of a running cluster's coordinator (default: a cluster of its own)"
    )
    parser.add_argument("--kafka", help="bootstrap servers of that cluster")
    parser.add_argument(
        "--data-dir", type=Path, help="folder of a local cluster, to find its processes for faults"
    )
    parser.add_argument("--keyspaces", type=int, default=2)
    parser.add_argument(
        "--rate", type=float, default=250.0, help="changes per second and keyspace (default: 250)"
    )
    parser.add_argument(
        "--ids", type=int, default=1_500, help="documents per keyspace at most (default: 1,500)"
    )
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument(
        "--json", action="store_true", help="the summary as one line of JSON, last on standard output"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of a cluster of its own")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    kinds = (
        list(KINDS)
        if arguments.faults == "all"
        else []
        if arguments.faults == "none"
        else arguments.faults.split(",")
    )
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        return _refuse(f"no such faults: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = Plan(
        seed=arguments.seed,
        seconds=arguments.minutes * 60,
        keyspaces=arguments.keyspaces,
        rate=arguments.rate,
        ids=arguments.ids,
        readers=arguments.readers,
        kinds=kinds,
    )
    try:
        if arguments.coordinator is not None:
            return _on_running(arguments, plan)
        return _on_own(arguments, plan)
    except KeytideError as error:
        return _refuse(f"{error.message} {error.next_step}".strip())
    except KeyboardInterrupt:
        return 130


def _on_running(arguments: argparse.Namespace, plan: Plan) -> int:
    with Admin(arguments.coordinator) as admin:
        known = admin.call("GET", "/v1/cluster")
    supervisor = running_pid(arguments.data_dir) if arguments.data_dir else None
    if plan.kinds and supervisor is None:
        return _refuse("faults need --data-dir of a local cluster that runs; or say --faults none")
    bootstrap = arguments.kafka or known["kafka"]
    if supervisor is not None and read_state(arguments.data_dir).get(
        "coordinator"
    ) != arguments.coordinator.rstrip("/"):
        return _refuse("the cluster in --data-dir has another --coordinator")
    run = Run(arguments.coordinator, bootstrap, known["cluster"], plan.seed)
    logs = arguments.data_dir / "logs" if arguments.data_dir else None
    driver = Driver(run, plan, supervisor, arguments.data_dir or Path(), clean_up=True)
    return _drive(driver, arguments.json, logs)


def _on_own(arguments: argparse.Namespace, plan: Plan) -> int:
    folder = Path(tempfile.mkdtemp(prefix="keytide-chaos-"))
    status = 1
    try:
        with LocalCluster(folder, nodes=3, projectors=2, settings=plan.settings(), say=_say) as cluster:
            run = Run(cluster.coordinator_url, cluster.bootstrap, cluster.name, plan.seed)
            status = _drive(Driver(run, plan, os.getpid(), folder), arguments.json, folder / "logs")
    finally:
        if status in (0, 130) and not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _say(f"the cluster's folder is kept: {folder}")
    return status


def _drive(driver: Driver, as_json: bool, logs: Path | None) -> int:
    interrupted = False
    try:
        driver.run(_say)
    except KeyboardInterrupt:
        interrupted = True
        driver.end()
    for line in driver.shared.report(logs):
        _say(line)
    summary = driver.shared.summary(interrupted=interrupted)
    _say(driver.closing_words(interrupted))
    if as_json:
        print(json.dumps(summary), flush=True)
    else:
        _say(json.dumps(summary, indent=2))
    if driver.shared.problem is not None:
        return 1
    return 130 if interrupted else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse(why: str) -> int:
    _say(why)
    return 2


if __name__ == "__main__":
    sys.exit(main())
