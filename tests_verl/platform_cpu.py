"""verl's platform for a machine without an accelerator, by ``VERL_USE_EXTERNAL_MODULES=platform_cpu``: for tests only.

verl has a registry for platforms. ``VERL_PLATFORM=cpu`` picks this one, and ``VERL_ENGINE_DEVICE=cuda`` the class of
the FSDP engine, which verl registers for CUDA alone and which runs on CPUs as it is.
"""

import types
from contextlib import nullcontext

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

GIGABYTE = 1 << 30
NUMBERS = {"device_count": 1, "get_device_name": "CPU", "is_available": False, "mem_get_info": (GIGABYTE, GIGABYTE)}
MEMORY = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")


class Device(types.SimpleNamespace):
    """Stands in for ``torch.cuda``: memory is 0, the generator is the CPU's, and all else does nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_rng_state":
            return lambda *args, **kwargs: torch.get_rng_state()
        if name == "set_rng_state":
            return lambda state, *args, **kwargs: torch.set_rng_state(state)
        answer = 0 if name in MEMORY else NUMBERS.get(name)
        return lambda *args, **kwargs: answer


def answer(value):
    """A method that gives one value, whatever it is asked."""
    return lambda self, *args, **kwargs: value


ANSWERS = {
    "is_available": True,
    "current_device": "cpu",  # verl takes it for a device, not for an index
    "device_count": 1,
    "get_device_capability": (None, None),
    "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES",
    "nvtx_range": nullcontext(),
    "ray_resource_name": "GPU",  # which Ray is told there are some of
    "ray_noset_envvars": [],
    "is_ipc_supported": False,
}
NOTHING = ("set_device", "synchronize", "set_allocator_settings", "empty_cache", "profiler_start", "profiler_stop")
METHODS = {name: answer(value) for name, value in (ANSWERS | dict.fromkeys((*NOTHING, "cudart"))).items()}
METHODS |= dict.fromkeys(("manual_seed", "manual_seed_all"), lambda self, seed: torch.manual_seed(seed))
METHODS |= {name: property(answer("cpu")) for name in ("device_name", "vendor_name")}
CPUPlatform = type("CPUPlatform", (PlatformBase,), METHODS | {"device_module": Device()})
"""The CPU as verl asks for a platform."""
PlatformRegistry.register("cpu")(CPUPlatform)


def one_backend():
    """verl asks for ``cpu:gloo,<device>:<backend>``, which names gloo twice where the device is the CPU."""
    import verl.utils.distributed as distributed

    begin = distributed.initialize_global_process_group_ray

    def initialize(timeout_second=None, backend=None):
        return begin(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


one_backend()
