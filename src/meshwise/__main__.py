"""`python -m meshwise` is the command `meshwise`."""

from meshwise.cli import main

main()
