"""Data for the models: readers of files, which raise at whatever they do not understand, and seeded generators.

In: paths, or sizes and a seed. Out: lists of examples. Imports nothing of edbatch but errors; `workloads` and `bench`
import it.
"""

from edbatch.datasets.corpora import Corpus
from edbatch.datasets.files import DatasetError
from edbatch.datasets.lattices import Lattice, LatticeBank, load_lattices, read_lattices
from edbatch.datasets.programs import Call, Feature, ProgramBank, Question, random_programs, random_questions
from edbatch.datasets.synthetic.random_dags import Dag, random_dags
from edbatch.datasets.synthetic.random_grids import Grid, Triangle, random_grids, random_triangles
from edbatch.datasets.synthetic.random_lattices import random_lattices
from edbatch.datasets.synthetic.random_sentences import random_sentences
from edbatch.datasets.synthetic.random_translations import random_translations
from edbatch.datasets.synthetic.random_trees import random_perfect_trees, random_trees
from edbatch.datasets.tags import Sentence, TaggedText, load_tags, read_tags
from edbatch.datasets.translations import Pair, Translations, load_pairs, read_pairs, read_vocabulary
from edbatch.datasets.trees import NUM_LABELS, Tree, Treebank, load_trees, read_trees, with_kinds
from edbatch.datasets.vocabulary import Vocabulary

__all__ = [
    "NUM_LABELS", "Call", "Corpus", "Dag", "DatasetError", "Feature", "Grid", "Lattice", "LatticeBank", "Pair",
    "ProgramBank", "Question", "Sentence", "TaggedText", "Translations", "Tree", "Treebank", "Triangle", "Vocabulary",
    "load_lattices", "load_pairs", "load_tags", "load_trees", "random_dags", "random_grids", "random_lattices",
    "random_perfect_trees", "random_programs", "random_questions", "random_sentences", "random_translations",
    "random_trees", "random_triangles", "read_lattices", "read_pairs", "read_tags", "read_trees", "read_vocabulary",
    "with_kinds",
]  # fmt: skip
