from contextlib import contextmanager


@contextmanager
def item_context(item):
    yield
