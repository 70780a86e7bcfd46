"""Every reader takes exactly its format and names the file, the line and what it expected where a file is not in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tree_text import format_tree

from edbatch.datasets import DatasetError
from edbatch.datasets.lattices import load_lattices, read_lattices
from edbatch.datasets.tags import load_tags, read_tags
from edbatch.datasets.translations import load_pairs, read_pairs, read_vocabulary
from edbatch.datasets.trees import load_trees, read_trees


def trees(path: Path) -> list[str]:
    bank = read_trees(path)
    return [format_tree(tree, bank.vocabulary) for tree in bank.trees]


def tags(path: Path) -> list[list[tuple[str, str]]]:
    text = read_tags(path)
    return [
        [(text.words.words[w], text.tags.words[t]) for w, t in zip(s.words, s.tags, strict=True)]
        for s in text.sentences
    ]


def sources(path: Path) -> list[list[str]]:
    partner = path.with_name("partner")
    partner.write_text("x\n" * len(READERS["sources"].lines))
    bank = read_pairs(path, partner)
    return [[bank.source_words.words[id_] for id_ in pair.source] for pair in bank.pairs]


def targets(path: Path) -> list[list[str]]:
    partner = path.with_name("partner")
    partner.write_text("x\n" * len(READERS["targets"].lines))
    bank = read_pairs(partner, path)
    return [[bank.target_words.words[id_] for id_ in pair.target] for pair in bank.pairs]


class Reader(NamedTuple):
    """What reads a path, the name of its content in errors, and the lines of a good file."""

    read: Callable[[Path], Any]
    content: str
    lines: Sequence[str]


READERS = {
    "trees": Reader(trees, "trees", ["(2 a)", "(3 (2 b) (4 c))", "(1 d)"]),
    "tags": Reader(tags, "tagged sentences", ["a|O b|I-PER", "c|O", "d|I-LOC e|O"]),
    "lattices": Reader(
        lambda path: read_lattices(path).lattices,
        "lattices",
        ["2", "3", "0 5 6", "0", "1 0 17", "2 1 18 0 99", "", "2", "0 5", "0 ", "1 0 20"],
    ),
    "sources": Reader(sources, "sentences", ["a b", "c", "d e"]),
    "targets": Reader(targets, "translations", ["a b", "c", "d e"]),
    "words": Reader(lambda path: read_vocabulary(path).words, "words", ["<unk>", "<s>", "</s>", "a", "b"]),
}


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes | Sequence[str]) -> Path:
        path = tmp_path / "file"
        if isinstance(content, (list, tuple)):
            content = "\n".join(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_ends_of_lines_and_of_the_file_do_not_matter(write, reader):
    expected = reader.read(write(reader.lines))
    assert len(expected) >= 2
    assert reader.read(write([*reader.lines, ""])) == expected
    assert reader.read(write([line + "\r" for line in reader.lines])) == expected
    assert reader.read(write("\ufeff" + "\n".join(reader.lines))) == expected


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_no_text_file_is_refused(write, tmp_path, reader):
    with pytest.raises(DatasetError, match=rf"cannot read the {reader.content} in .*missing: No such file"):
        reader.read(tmp_path / "missing")
    with pytest.raises(DatasetError, match=rf"cannot read the {reader.content} in .*: Is a directory"):
        reader.read(tmp_path)
    with pytest.raises(DatasetError, match=f"file, line 1: expected {reader.content}, found an empty file$"):
        reader.read(write(b""))
    with pytest.raises(DatasetError, match=r"file, line 2: expected UTF-8 text \(invalid start byte\)$"):
        reader.read(write(reader.lines[0].encode() + b"\n\xff\n"))
    with pytest.raises(DatasetError, match=r"file, line 1: expected UTF-8 text \(unexpected end of data\)$"):
        reader.read(write("ơ".encode()[:-1]))


NO_SENTENCE = "expected a sentence, found none"
LABEL = "expected a label from 0 to 4 after '(', found"
PARTS = "expected one word or two subtrees before ')', found"
ARCS = "expected the number of arcs and a pair `from token` for each, found"
NUM_LATTICES, NUM_NODES = "expected the number of lattices, at least 1", "expected the number of nodes of lattice"


@pytest.mark.parametrize(
    ("reader", "line", "content", "message"),
    [
        ("trees", 2, "", "expected a tree, found none"),
        ("trees", 2, "2 a)", "expected '(', found '2'"),
        ("trees", 2, ") (2 a)", "expected '(', found ')'"),
        ("trees", 2, "(2 a", "expected ')', found the end of the line"),
        ("trees", 2, "(3 (2 a) (2 b)", "expected ')', found the end of the line"),
        ("trees", 2, "(", f"{LABEL} the end of the line"),
        ("trees", 2, "(5 a)", f"{LABEL} '5'"),
        ("trees", 2, "(good)", f"{LABEL} 'good'"),
        ("trees", 2, "(2\ta)", rf"{LABEL} '2\ta'"),
        ("trees", 2, "(² a)", f"{LABEL} '²'"),
        ("trees", 2, "((2 a) (2 b))", f"{LABEL} '('"),
        ("trees", 2, "(2)", f"{PARTS} 0 words and 0 subtrees"),
        ("trees", 2, "(2 a b)", f"{PARTS} 2 words and 0 subtrees"),
        ("trees", 2, "(2 (2 a))", f"{PARTS} 0 words and 1 subtrees"),
        ("trees", 2, "(2 (2 a) b)", f"{PARTS} 1 words and 1 subtrees"),
        ("trees", 2, "(2 (2 a) (2 b) (2 c))", f"{PARTS} 0 words and 3 subtrees"),
        ("trees", 2, "(2 a) (2 b)", "expected nothing after the tree, found '('"),
        ("trees", 2, "(2 a))", "expected nothing after the tree, found ')'"),
        ("tags", 2, "", "expected a sentence of token|tag, found none"),
        ("tags", 2, "  ", "expected a sentence of token|tag, found none"),
        ("tags", 2, "a|O b", "expected token|tag, found 'b'"),
        ("tags", 2, "a|O |O", "expected token|tag, found '|O'"),
        ("tags", 2, "a|", "expected token|tag, found 'a|'"),
        ("tags", 2, "|", "expected token|tag, found '|'"),
        ("lattices", 1, "0", f"{NUM_LATTICES}, found '0'"),
        ("lattices", 1, "2 3", f"{NUM_LATTICES}, found '2 3'"),
        ("lattices", 1, "two", f"{NUM_LATTICES}, found 'two'"),
        ("lattices", 2, "", f"{NUM_NODES} 1 of 2, at least 1, found ''"),
        ("lattices", 2, "0", f"{NUM_NODES} 1 of 2, at least 1, found '0'"),
        ("lattices", 2, "-3", f"{NUM_NODES} 1 of 2, at least 1, found '-3'"),
        ("lattices", 3, "0 5", "expected 3 tag ids, found 2"),
        ("lattices", 3, "0 5 6 7", "expected 3 tag ids, found 4"),
        ("lattices", 3, "0 5 O", "expected 3 tag ids, found '0 5 O'"),
        ("lattices", 3, "0\xa05 6 7", r"expected 3 tag ids, found '0\xa05 6 7'"),
        ("lattices", 4, "", f"{ARCS} ''"),
        ("lattices", 4, "1 0 17", "expected arcs to node 0 from nodes below 0, found one from 0"),
        ("lattices", 5, "1 0", f"{ARCS} '1 0'"),
        ("lattices", 5, "1 0 17 18", f"{ARCS} '1 0 17 18'"),
        ("lattices", 5, "2 0 17", f"{ARCS} '2 0 17'"),
        ("lattices", 5, "1 1 17", "expected arcs to node 1 from nodes below 1, found one from 1"),
        ("lattices", 5, "1 -1 17", "expected the arcs of node 1 of 3, found '1 -1 17'"),
        ("lattices", 5, "1 0 ²", "expected the arcs of node 1 of 3, found '1 0 ²'"),
        ("lattices", 6, "x" * 50, f"expected the arcs of node 2 of 3, found '{'x' * 40}…'"),
        ("lattices", 7, "1 2 3", "expected a blank line between lattices 1 and 2 of 2, found '1 2 3'"),
        ("sources", 2, "", NO_SENTENCE),
        ("sources", 3, "  ", NO_SENTENCE),
        ("sources", 1, "<s> a", "expected a sentence without marks, found '<s>'"),
        ("sources", 2, "a </s> b", "expected a sentence without marks, found '</s>'"),
        ("targets", 2, "", NO_SENTENCE),
        ("targets", 3, "a </s>", "expected a sentence without marks, found '</s>'"),
        ("words", 1, "a", "expected '<unk>', found 'a'"),
        ("words", 2, "</s>", "expected '<s>', found '</s>'"),
        ("words", 3, "", "expected '</s>', found ''"),
        ("words", 4, "", "expected one word, found ''"),
        ("words", 4, "a b", "expected one word, found 'a b'"),
        ("words", 5, "a", "expected another word than 'a', which is on line 4 already"),
        ("words", 5, "<s>", "expected another word than '<s>', which is on line 2 already"),
    ],
)
def test_malformed_line_is_named(write, reader, line, content, message):
    lines = list(READERS[reader].lines)
    lines[line - 1] = content
    with pytest.raises(DatasetError, match=rf"file, line {line}: {re.escape(message)}$"):
        READERS[reader].read(write([*lines, ""]))


@pytest.mark.parametrize(
    ("reader", "length", "message"),
    [
        ("trees", 18, "line 2: expected ')', found the end of the line"),
        ("tags", 6, "line 1: expected token|tag, found 'b|'"),
        ("tags", 5, "line 1: expected token|tag, found 'b'"),
        ("lattices", 2, f"line 2: {NUM_NODES} 1 of 2, at least 1, found the end of the file"),
        ("lattices", 4, "line 3: expected 3 tag ids, found the end of the file"),
        ("lattices", 8, "line 3: expected 3 tag ids, found 2"),
        ("lattices", 19, "line 6: expected the arcs of node 2 of 3, found the end of the file"),
        ("lattices", 27, f"line 6: {ARCS} '2 1 18 0'"),
        ("lattices", 31, "line 7: expected a blank line between lattices 1 and 2 of 2, found the end of the file"),
        ("lattices", 32, f"line 8: {NUM_NODES} 2 of 2, at least 1, found the end of the file"),
        ("sources", 5, "line 3: expected a sentence for each of the 3 lines of {}/partner, found the end of the file"),
        ("targets", 3, "line 2: expected a sentence for each of the 3 lines of {}/partner, found the end of the file"),
        ("words", 5, "line 2: expected '<s>', found the end of the file"),
        ("words", 8, "line 2: expected '<s>', found '<s'"),
        ("words", 10, "line 3: expected '</s>', found the end of the file"),
    ],
)
def test_file_that_is_cut_off_is_refused(write, tmp_path, reader, length, message):
    content = "\n".join(READERS[reader].lines)[:length]
    with pytest.raises(DatasetError, match=rf"file, {re.escape(message.format(tmp_path))}$"):
        READERS[reader].read(write(content))


@pytest.mark.parametrize("token", ["3\xa01", "a\x85b", "a\u2028b", "\u3000", "ơ", "\r\xa0"])
@pytest.mark.parametrize(
    ("reader", "line"),
    [("trees", "(2 {})"), ("tags", "{}|O"), ("sources", "{}"), ("targets", "{}"), ("words", "{}")],
)
def test_only_ascii_spaces_separate_and_only_line_feeds_end_lines(write, reader, line, token):
    def text_with(token: str) -> str:
        read = READERS[reader].read(write([*READERS[reader].lines[:-1], line.format(token)]))
        return json.dumps(read, ensure_ascii=False)

    assert text_with(token) == text_with("TOKEN").replace("TOKEN", token.replace("\r", "\\r"))


IWSLT15 = {"vocab.en": "<unk>\n<s>\n</s>", "vocab.vi": "<unk>\n<s>\n</s>", "tst2012.en": "a", "tst2012.vi": "b"}


@pytest.mark.parametrize(
    ("load", "text_of_file", "generator"),
    [
        (lambda folder: load_tags(folder=folder), {"tags/dev.txt": "a|O"}, "random_sentences"),
        (lambda folder: load_lattices("dev", folder), {"lattice/dev.txt": "1\n1\n0\n0"}, "random_lattices"),
        (load_pairs, {f"iwslt15/{file}": text for file, text in IWSLT15.items()}, "random_translations"),
    ],
    ids=["tags", "lattices", "pairs"],
)
def test_data_folder_is_used_and_named(monkeypatch, tmp_path, load, text_of_file, generator):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    with pytest.raises(DatasetError, match=f"no folder of data; give one, .* or use {generator} instead"):
        load(None)
    for file, text in text_of_file.items():
        with pytest.raises(DatasetError, match=r" is no file; give \(or set EDBATCH_DATA to\) a folder that holds it$"):
            load(tmp_path)
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setenv("EDBATCH_DATA", str(tmp_path))
    assert all(str(tmp_path / file) in load(None).source for file in text_of_file if "vocab" not in file)
    monkeypatch.setenv("EDBATCH_DATA", "/nowhere")
    assert load(tmp_path)[0]


def test_trees_are_shipped_where_there_is_no_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    assert load_trees("dev").source == "generated trees shipped with edbatch (dev)"
    monkeypatch.setenv("EDBATCH_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match=r"dev\.txt is no file; give \(or set EDBATCH_DATA to\) a folder"):
        load_trees("dev")
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "dev.txt").write_text("(2 a)\n")
    assert load_trees("dev").source == str(tmp_path / "trees" / "dev.txt")
    monkeypatch.setenv("EDBATCH_DATA", "/nowhere")
    assert len(load_trees("dev", folder=tmp_path).trees) == 1


@pytest.mark.parametrize("load", [load_trees, load_tags, load_lattices])
@pytest.mark.parametrize("folder", [None, "/nowhere"])
def test_unknown_split_is_refused(monkeypatch, load, folder):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    with pytest.raises(DatasetError, match=r"^expected the split .train. or .dev., found 'test'$"):
        load("test", folder=folder)
