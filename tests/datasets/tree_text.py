"""Trees as text, in the form that `read_trees` reads."""

_ESCAPE_OF_WORD = {"(": "-LRB-", ")": "-RRB-"}


def format_tree(tree, vocabulary):
    texts = []
    for node in tree.nodes():
        if node.is_leaf:
            word = vocabulary.words[node.word]
            texts.append(f"({node.label} {_ESCAPE_OF_WORD.get(word, word).replace('/', chr(92) + '/')})")
        else:
            right, left = texts.pop(), texts.pop()
            texts.append(f"({node.label} {left} {right})")
    return texts[0]
