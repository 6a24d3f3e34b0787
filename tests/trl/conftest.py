from functools import lru_cache

from accelerate.utils import imports
from datasets import fingerprint
from plain_head import put_in_place
from tiny_runs import forwarded, tiny_path

__all__ = ["forwarded", "tiny_path"]

# A fifth of the time of short runs: what is installed is looked up at every unwrapping of a model, and every function
# that a dataset is mapped with is pickled to name a file of the cache, which data in memory have not.
imports._is_package_available = lru_cache(imports._is_package_available)
fingerprint.update_fingerprint = lambda *_: fingerprint.generate_random_fingerprint()
put_in_place()
