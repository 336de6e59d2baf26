"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs."""

if __name__ == "__main__":  # a spawned worker imports this module too, and needs nothing of the command
    import sys

    from conformance.run.stop import ends_imports

    ends_imports("conformance.fuzz")

    from conformance.fuzzing.command import main

    sys.exit(main())
