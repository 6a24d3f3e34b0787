import sys
import types

import pytest

from dppo.packing.cuda_kernels import flash_attn


@pytest.fixture
def flash(monkeypatch):
    """Puts functions in the place of flash-attn, which needs CUDA; nothing is remembered from another test."""

    def install(**functions):
        module = types.ModuleType("flash_attn.flash_attn_interface")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        flash_attn.cache_clear()

    flash_attn.cache_clear()
    yield install
    flash_attn.cache_clear()
