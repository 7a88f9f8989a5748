"""Dead letters: when they come back by themselves, and what people can do with the rest.

By themselves: `policy` decides what becomes of a letter, `sources` where it goes, `execution` takes a batch of them a
step on, and `handler` lets a worker serve a first tier. For people: `letters` are looked at, `filters` say which are
meant, `groups` what they died of; `operator` sends them back, `canary` one of them ahead; `letter_lines` keeps them in
files.
"""
