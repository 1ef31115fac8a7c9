"""A small load through the CUDA driver alone: holds memory and writes it over and over, until it is ended."""

import ctypes
import sys

HELD = 2**30


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name} failed with CUDA error {code}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(HELD))
    print("loaded", flush=True)
    while True:
        for value in range(64):
            call("cuMemsetD32_v2", memory, ctypes.c_uint(value), ctypes.c_size_t(HELD // 4))
        call("cuCtxSynchronize")


if __name__ == "__main__":
    sys.exit(main())
