"""Makes staged batches visible in their target tables, each exactly once, without Spark.

The words: a batch is *staged* in a table of its stream's own, *published* by one commit on the target that also moves
the stream's *mark* there, and *cleared* from the staging table. Decision 0001 says why.
"""
