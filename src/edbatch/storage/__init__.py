"""Files that outlive the process: one cache folder, whose entries are checked, machine code kept in it, and whole
writes.

Imports errors alone; any room may import it.
"""
