from conftest_trl import forwarded, tiny_path

__all__ = ["forwarded", "tiny_path"]
