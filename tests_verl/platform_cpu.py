"""verl's platform for a machine without an accelerator, by ``VERL_USE_EXTERNAL_MODULES=platform_cpu``: for tests only.

verl has a registry for platforms. ``VERL_PLATFORM=cpu`` picks this one, and ``VERL_ENGINE_DEVICE=cuda`` the class of
the FSDP engine, which verl registers for CUDA alone and which runs on CPUs as it is.
"""

import types
from contextlib import contextmanager

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


@PlatformRegistry.register("cpu")
class CPUPlatform(PlatformBase):
    """The CPU as verl asks for a platform."""

    device = Device()
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: CPUPlatform.device)

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"  # verl takes it for a device, not for an index

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return (None, None)

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"  # which Ray is told there are some of

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


def one_backend():
    """verl asks for ``cpu:gloo,<device>:<backend>``, which names gloo twice where the device is the CPU."""
    import verl.utils.distributed as distributed

    begin = distributed.initialize_global_process_group_ray

    def initialize(timeout_second=None, backend=None):
        return begin(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


one_backend()
