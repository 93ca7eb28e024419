"""The command line. One file per command; `main.py` has the table of commands."""
