"""The command line: python -m labkit setup | lab | run | doctor | league | clean."""

import argparse
import signal
import sys

from .errors import LabError


def _setup(args) -> int:
    from . import programs

    names = args.program or (list(programs.TABLE) if args.all else None)
    try:
        programs.install(names)
    except LabError as error:
        if args.program or any("00" in program.chapters for program in programs.missing()):
            raise
        print(f"{error}\n(The first chapters run without it.)", file=sys.stderr)
    for name in names or programs.needed():
        if found := programs.find(name):
            print(f"{found.program.title} {found.version} ({found.path})")
    return 0


def _setup_kafka(args) -> int:
    from .servers import kafka

    print(f"Kafka's server ({kafka.fetch()})")
    return 0


def _lab(args) -> int:
    from . import serve

    return serve.main(args.port, args.ip)


def _run(args) -> int:
    from . import notebooks

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as with Ctrl-C: with its kernel
    return notebooks.run(args.notebook, args.driver, args.quick)


def _doctor(args) -> int:
    from . import doctor

    return doctor.main(as_json=args.json)


def _league(args) -> int:
    from .league import season

    return season.main(args.minutes, args.seed, args.lock)


def _clean(args) -> int:
    from . import clean

    return clean.main()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m labkit", description="The laboratory of the course.")
    commands = parser.add_subparsers(metavar="command", required=True)

    setup = commands.add_parser("setup", help="get the server programs that are missing")
    setup.add_argument("program", nargs="*", help="which (default: those that the chapters need now)")
    setup.add_argument("--all", action="store_true", help="all that the laboratory can drive, as its tests do")
    setup.set_defaults(do=_setup)

    kafka = commands.add_parser("setup-kafka", help="fetch Kafka's server with Maven")
    kafka.set_defaults(do=_setup_kafka)

    lab = commands.add_parser("lab", help="open the course in JupyterLab")
    lab.add_argument("--port", type=int, default=8888, help="or, if that is taken, the next one that is free")
    lab.add_argument("--ip", default="127.0.0.1", help="where it listens: 0.0.0.0 in a container, never elsewhere")
    lab.set_defaults(do=_lab)

    run = commands.add_parser("run", help="run one notebook from top to bottom")
    run.add_argument("notebook", help="its number or name: 00, 01-locks")
    run.add_argument("--driver", default="auto", choices=("auto", "docker", "local"), help="how servers are started")
    run.add_argument("--quick", action="store_true", help="shortened times")
    run.set_defaults(do=_run)

    doctor = commands.add_parser("doctor", help="what this machine has and what it lacks")
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.set_defaults(do=_doctor)

    league = commands.add_parser("league", help="let every lock of the course play in one storm of faults")
    league.add_argument("--minutes", type=float, default=10, help="rounds begin for so long (default: 10)")
    league.add_argument("--seed", type=int, default=7, help="of the storm (default: 7)")
    league.add_argument("--lock", action="append", default=[], help="only this one, by a part of its name; repeatable")
    league.set_defaults(do=_league)

    clean = commands.add_parser("clean", help="remove what a crash left behind")
    clean.set_defaults(do=_clean)

    args = parser.parse_args(argv)
    try:
        return args.do(args)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
