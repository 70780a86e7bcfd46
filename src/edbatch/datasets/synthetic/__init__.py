"""Random data in the forms of the real data sets."""
