"""DyNet, a library that batches automatically, as a contender: the same models and cells, written in its API.

In: settings and a model of `edbatch.models`. Out: results, as in `bench`. Needs DyNet, which is not a dependency. Only
`cli` and `bench` import it.
"""
