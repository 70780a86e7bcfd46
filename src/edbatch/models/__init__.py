"""Models written for one example, ready for `edbatch.batch`: ordinary modules to start from, each on one screen.

Each takes its sizes by keyword and one example, and returns the sum of the losses of the example's labels and the
guesses at them. `workloads` gives them data.
"""

from edbatch.models.attention_nmt import AttentionTranslator
from edbatch.models.bilstm_tagger import BiLSTMTagger
from edbatch.models.bilstm_tagger_char import BiLSTMCharTagger
from edbatch.models.cells.label_loss import LabelLoss
from edbatch.models.cells.token_lstm import TokenLSTM
from edbatch.models.grid_lstm import GridLSTM
from edbatch.models.grid_tree import GridTree
from edbatch.models.lattice_gru import LatticeGRU
from edbatch.models.lattice_lstm import LatticeLSTM
from edbatch.models.lstm_nmt import LSTMTranslator
from edbatch.models.module_net import ModuleNet
from edbatch.models.mv_rnn import MVRNN
from edbatch.models.random_dag import RandomDag
from edbatch.models.tree_gru import TreeGRU
from edbatch.models.tree_lstm import BinaryTreeLSTM, LeafLSTM, TreeLSTM
from edbatch.models.tree_lstm_2type import TwoTypeTreeLSTM

__all__ = [
    "MVRNN", "AttentionTranslator", "BiLSTMCharTagger", "BiLSTMTagger", "BinaryTreeLSTM", "GridLSTM", "GridTree",
    "LSTMTranslator", "LabelLoss", "LatticeGRU", "LatticeLSTM", "LeafLSTM", "ModuleNet", "RandomDag", "TokenLSTM",
    "TreeGRU", "TreeLSTM", "TwoTypeTreeLSTM",
]  # fmt: skip
