"""A download that is not whole: the file, and which parts of it are there. Outlives a restart.

Blocking. What the notes say is there was synced before; the digest of the whole has the last word.
"""

PARTIAL = "-partial"
