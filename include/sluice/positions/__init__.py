"""The position of a stream, which has four witnesses: the marks on its tables, the ledger, the checkpoint, the sources.

observe_position ──► judge_position ──► repair_decision ──► repair_stream
reads all four       names the one       what is written      writes it back,
                     that disagrees      back, or why not     step by step
"""
