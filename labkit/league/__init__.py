"""The league: every lock of the course under one seeded storm of faults, with real money in a table.

plan.py     what strikes whom, and where: reproducible from the seed
entrants.py which locks play, which chapter's recipe each of them is, and which servers it needs
job.py      what a worker does: in, read, think, write, out
match.py    one lock in the storm, and what came of it
table.py    the table and its picture
season.py   all of them, round after round, with a history

The league has no lock of its own: it takes them from the cells of the chapters. Kept light here, as workers import
`job` from it.
"""
