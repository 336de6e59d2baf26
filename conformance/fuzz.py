"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, show what differs."""

if __name__ == "__main__":  # a spawned worker imports this module too, and needs nothing of the command
    import sys

    from conformance.core.errors import UserError
    from conformance.core.uncollected import uncollected
    from conformance.run.stop import ends_imports

    ends_imports("conformance.fuzz")
    try:
        with uncollected():
            from conformance.fuzzing.command import main
    except UserError as error:  # the installed torch lacks what nothing here can do without
        print(f"conformance.fuzz: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
