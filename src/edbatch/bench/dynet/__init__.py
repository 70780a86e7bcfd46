"""DyNet, a library that batches automatically, as a contender: the same models and cells, written in its API."""
