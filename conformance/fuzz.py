"""The command `python -m conformance.fuzz`: draw programs, run them on a target and on torch CPU, report
differences.
"""

if __name__ == "__main__":  # spawned workers import this module too, and do not need the command
    import sys

    from conformance.engine.gc_freeze import gc_freeze
    from conformance.record.errors import UserError
    from conformance.run.signals import ends_imports

    ends_imports("conformance fuzz")
    try:
        with gc_freeze():
            from conformance.sources.fuzzing.command import main
    except UserError as error:  # the installed torch lacks a required symbol
        print(f"conformance fuzz: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
