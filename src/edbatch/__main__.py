"""`python -m edbatch` is the command `edbatch`."""

from edbatch.cli import main

if __name__ == "__main__":
    main()
