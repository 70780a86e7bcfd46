"""What `edbatch bench` measures: edbatch and its contenders take turns in one process.

In: settings. Out: results as JSON and as tables, with medians, quartiles and facts about the machine.
"""
