"""Makes staged batches visible in their target tables, each exactly once, without Spark.

A batch is *staged* in a staging table of its stream, *published* by one commit on the target that also moves the
stream's *mark* there, and *cleared* from the staging table. Decision 0001 says why.
"""
