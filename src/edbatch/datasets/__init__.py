"""Data for the models: readers that refuse what they do not understand, and seeded generators."""

from edbatch.datasets.files import DatasetError
from edbatch.datasets.lattices import Lattice, LatticeBank, load_lattices, read_lattices
from edbatch.datasets.programs import Call, Feature, ProgramBank, random_programs
from edbatch.datasets.random_lattices import random_lattices
from edbatch.datasets.random_sentences import random_sentences
from edbatch.datasets.random_trees import random_trees
from edbatch.datasets.tags import Sentence, TaggedText, load_tags, read_tags
from edbatch.datasets.trees import NUM_LABELS, Tree, Treebank, load_trees, read_trees
from edbatch.datasets.vocabulary import Vocabulary

__all__ = [
    "NUM_LABELS", "Call", "DatasetError", "Feature", "Lattice", "LatticeBank", "ProgramBank", "Sentence", "TaggedText",
    "Tree", "Treebank", "Vocabulary", "load_lattices", "load_tags", "load_trees", "random_lattices", "random_programs",
    "random_sentences", "random_trees", "read_lattices", "read_tags", "read_trees",
]  # fmt: skip
