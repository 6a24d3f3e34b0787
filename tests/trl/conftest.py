from conftest_trl import tiny_path

__all__ = ["tiny_path"]
