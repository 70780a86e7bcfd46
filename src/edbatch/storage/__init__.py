"""Files that outlive the process: a cache folder with checked entries, machine code kept in it, and safe writing.

In: Python functions, or contents with a name and a key. Out: compiled functions, or the same contents in a later
process. Imports nothing else of this package; any other part of it may import it.
"""
