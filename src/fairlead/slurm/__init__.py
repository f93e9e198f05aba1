"""Slurm's commands, spoken to a Fairlead server: a door that translates, decides nothing and keeps no state of its own.

`tables` has all options of all commands; from it come parsing (`options`), refusals, help and docs/slurm.md. The
options of a job are kept in its labels, as `slurm/OPTION`. `rows` turns the answers of the server into Slurm's words,
one row a job or array task, and `fields` into columns. `commands` has the list of commands; `install` writes them
into a directory.
"""
