"""What the commands of `edbatch` do and show, apart from measuring (`bench`) and fuzzing (`fuzz`).

In: the options of a command, checked by `cli`. Out: tables and progress on the console, pictures and files. Only `cli`
imports it; one module per command, besides what they share (options, output, words, pictures).
"""
