"""What a GPU does at one instant, and which processes are on it."""

import time
from typing import Any, Final

import pynvml as nvml

from producers.agent.nvml import mig
from producers.agent.nvml.hardware import Identity
from producers.agent.nvml.session import Handle, LostError, Session
from producers.agent.source import Process, Reading, Symptom
from schemas.usage import GpuSample

ALL_LINKS: Final = 0xFFFFFFFF
KIB: Final = 1024
KB: Final = 1000
FULL: Final = 100

_COUNTERS: Final = [
    (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
    (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
    (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
    (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
]
_UNITS: Final = (1, 1, KIB, KIB)
"""Bytes in one count of each."""

_PCIE: Final = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
_CLOCKS: Final = (nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_VIDEO)

_PROCESSES: Final = (
    (nvml.nvmlDeviceGetComputeRunningProcesses, True),
    (nvml.nvmlDeviceGetMPSComputeRunningProcesses, True),  # clients of an MPS server; the server is among the others
    (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
)

_THROTTLE: Final[dict[int, str]] = {
    nvml.nvmlClocksEventReasonSwPowerCap: "SwPowerCap",
    nvml.nvmlClocksEventReasonHwSlowdown: "HwSlowdown",
    nvml.nvmlClocksEventReasonSyncBoost: "SyncBoost",
    nvml.nvmlClocksEventReasonSwThermalSlowdown: "SwThermalSlowdown",
    nvml.nvmlClocksEventReasonHwThermalSlowdown: "HwThermalSlowdown",
    nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "HwPowerBrakeSlowdown",
}
"""What slows a GPU down. That it idles, or that somebody chose its clocks, is no throttling."""


class Meter:
    """Reads one GPU again and again; keeps what rates and process samples are counted from."""

    def __init__(self, session: Session, identity: Identity) -> None:
        self._session = session
        self._handle = identity.handle
        self.uuid = identity.device.uuid
        self._vram = identity.device.vram_bytes
        self._counters: list[int | None] = [None] * len(_COUNTERS)
        self._counted_at = 0.0
        self._processes_seen_us = 0

    def read(self) -> Reading:
        """Return what the GPU does. One that does not answer gives an absent sample with the symptom.

        Raises:
            SourceError: The driver cannot be used.
        """
        try:
            return self._read()
        except LostError as error:
            return Reading(GpuSample(uuid=self.uuid, absent=True), symptoms=(Symptom("Lost", str(error)),))

    def _read(self) -> Reading:
        may, handle = self._session.may, self._handle
        cut = mig.enabled(self._session, handle)
        rates = may(None, nvml.nvmlDeviceGetUtilizationRates, handle)
        clocks = [may(0, nvml.nvmlDeviceGetClockInfo, handle, kind) for kind in _CLOCKS]
        traffic = self._traffic()
        _total, used = self._session.memory(handle) or (0, 0)
        sample = GpuSample(
            uuid=self.uuid,
            sm_percent=0.0 if rates is None else float(min(rates.gpu, FULL)),
            memory_percent=0.0 if rates is None else float(min(rates.memory, FULL)),
            vram_used_bytes=used,
            temperature_c=may(0, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_mw=may(0, nvml.nvmlDeviceGetPowerUsage, handle),
            graphics_clock_mhz=clocks[0],
            sm_clock_mhz=clocks[1],
            memory_clock_mhz=clocks[2],
            video_clock_mhz=clocks[3],
            pcie_rx_bytes=traffic[0],
            pcie_tx_bytes=traffic[1],
            nvlink_rx_bytes=traffic[2],
            nvlink_tx_bytes=traffic[3],
            throttle=self._throttle(),
        )
        impossible = self._vram and used > self._vram
        symptoms = (Symptom("InvalidReading", f"{used} of {self._vram} bytes in use"),) if impossible else ()
        return Reading(sample, self._processes(cut=cut), symptoms)

    def _throttle(self) -> tuple[str, ...]:
        reasons = self._session.may(0, nvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle)
        return tuple(name for bit, name in _THROTTLE.items() if reasons & bit)

    def _traffic(self) -> list[int]:
        """Return bytes per second since the last reading: PCIe in, out, NVLink in, out."""
        now = time.monotonic()
        counters = self._session.fields(self._handle, _COUNTERS)
        seconds = now - self._counted_at
        rates = [
            max(0, int((new - old) * unit / seconds)) if new is not None and old is not None else 0
            for new, old, unit in zip(counters, self._counters, _UNITS, strict=True)
        ]
        self._counters, self._counted_at = counters, now
        for place, kind in enumerate(_PCIE):
            if counters[place] is None:  # older GPUs measure for 20 ms instead of counting
                rates[place] = KB * self._session.may(0, nvml.nvmlDeviceGetPcieThroughput, self._handle, kind)
        return rates

    def _processes(self, *, cut: bool) -> tuple[Process, ...]:
        if cut:
            found = []
            for device in mig.handles(self._session, self._handle):
                uuid = self._session.ask(nvml.nvmlDeviceGetUUID, device)
                found += self._running(device, {}, uuid)
            return tuple(found)
        return tuple(self._running(self._handle, self._busy(), ""))

    def _running(self, handle: Handle, busy: dict[int, float], instance: str) -> list[Process]:
        found: dict[int, Process] = {}
        for kind, compute in _PROCESSES:
            running: list[Any] = self._session.may([], kind, handle)
            for p in running:
                vram = p.usedGpuMemory or 0
                found.setdefault(p.pid, Process(p.pid, vram, busy.get(p.pid, 0.0), instance, compute))
        return list(found.values())

    def _busy(self) -> dict[int, float]:
        """Return the compute that each process used since the last reading, in percent, the mean of its samples."""
        since = self._processes_seen_us
        samples: list[Any] = self._session.may([], nvml.nvmlDeviceGetProcessUtilization, self._handle, since)
        shares: dict[int, list[int]] = {}
        for sample in samples:
            if sample.timeStamp > since:
                shares.setdefault(sample.pid, []).append(min(sample.smUtil, FULL))
                self._processes_seen_us = max(self._processes_seen_us, sample.timeStamp)
        return {pid: sum(values) / len(values) for pid, values in shares.items()}
