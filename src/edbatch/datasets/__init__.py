"""Data for the models: readers that refuse what they do not understand, and seeded generators."""

from edbatch.datasets.random_trees import random_trees
from edbatch.datasets.trees import NUM_LABELS, DatasetError, Tree, Treebank, Vocabulary, load_trees, read_trees

__all__ = ["NUM_LABELS", "DatasetError", "Tree", "Treebank", "Vocabulary", "load_trees", "random_trees", "read_trees"]
