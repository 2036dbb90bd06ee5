"""`python -m redrive`: the same as the command `redrive`."""

from redrive.cli import main

main()
