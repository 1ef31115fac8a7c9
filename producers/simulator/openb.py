"""What the openb cluster looked like, in totals: kinds of nodes, shapes of pods, classes of service.

Counted over the public openb trace of a production GPU-sharing cluster (Alibaba ``clusterdata``,
``cluster-trace-gpu-v2023``: 1213 nodes with 6212 GPUs and the default list of 8152 pods), by Alibaba and HKUST,
described in Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023. Only aggregates are kept here, no row of the trace.
"""

from typing import Final

import msgspec


class NodeKind(msgspec.Struct, frozen=True):
    """A kind of machine: thousandths of a core, MiB of memory, GPUs, their model, and how many such nodes there are."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str
    count: int


class PodShape(msgspec.Struct, frozen=True):
    """What a pod asks for: thousandths of a core, MiB, GPUs, thousandths of each, and how many pods ask for that."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    count: int


NODE_KINDS: Final = (
    NodeKind(96_000, 393_216, 8, "G2", 549),
    NodeKind(104_000, 524_288, 2, "T4", 387),
    NodeKind(16_000, 122_880, 2, "P100", 107),
    NodeKind(128_000, 786_432, 8, "G3", 39),
    NodeKind(32_000, 131_072, 4, "V100M16", 28),
    NodeKind(64_000, 262_144, 2, "P100", 22),
    NodeKind(96_000, 786_432, 8, "V100M32", 21),
    NodeKind(8_000, 32_768, 1, "V100M16", 19),
    NodeKind(96_000, 393_216, 4, "T4", 17),
    NodeKind(48_000, 376_832, 4, "V100M32", 9),
    NodeKind(64_000, 262_144, 8, "V100M16", 7),
    NodeKind(8_000, 61_440, 1, "P100", 3),
    NodeKind(8_000, 61_440, 2, "P100", 2),
    NodeKind(128_000, 1_048_576, 1, "A10", 2),
    NodeKind(82_000, 344_064, 8, "V100M16", 1),
)
"""All 15 kinds, commonest first."""

POD_SHAPES: Final = (
    PodShape(3_152, 5_600, 1, 810, 1047),
    PodShape(11_300, 49_152, 1, 1000, 857),
    PodShape(11_400, 48_128, 1, 1000, 534),
    PodShape(3_152, 5_600, 1, 1000, 470),
    PodShape(11_908, 47_104, 1, 470, 388),
    PodShape(12_500, 57_344, 0, 0, 364),
    PodShape(8_000, 30_517, 1, 470, 360),
    PodShape(32_000, 49_152, 0, 0, 284),
    PodShape(18_708, 64_512, 1, 1000, 255),
    PodShape(11_908, 47_104, 1, 650, 237),
    PodShape(9_810, 41_560, 1, 1000, 195),
    PodShape(8_000, 30_517, 0, 0, 163),
    PodShape(12_000, 24_576, 1, 1000, 158),
    PodShape(15_700, 58_368, 1, 1000, 158),
    PodShape(11_908, 47_104, 1, 1000, 153),
    PodShape(15_400, 51_200, 0, 0, 120),
    PodShape(4_000, 22_888, 1, 320, 111),
    PodShape(16_000, 32_768, 1, 1000, 108),
    PodShape(8_000, 16_384, 1, 1000, 104),
    PodShape(4_000, 24_576, 1, 1000, 104),
    PodShape(12_000, 16_384, 1, 1000, 99),
    PodShape(16_500, 51_200, 0, 0, 95),
    PodShape(14_200, 58_368, 1, 1000, 93),
    PodShape(4_000, 30_517, 1, 230, 84),
    PodShape(24_200, 93_184, 1, 1000, 84),
    PodShape(4_000, 15_258, 1, 320, 78),
    PodShape(3_152, 5_600, 1, 590, 75),
    PodShape(8_000, 30_517, 1, 320, 72),
    PodShape(4_152, 10_600, 1, 550, 72),
    PodShape(11_400, 77_824, 1, 1000, 65),
    PodShape(8_000, 32_768, 1, 1000, 55),
    PodShape(4_000, 15_258, 1, 160, 53),
    PodShape(6_000, 6_144, 1, 460, 51),
    PodShape(11_900, 77_824, 1, 1000, 51),
    PodShape(4_152, 10_600, 1, 370, 45),
    PodShape(12_000, 15_360, 1, 1000, 44),
    PodShape(4_000, 30_517, 1, 320, 43),
    PodShape(8_200, 33_792, 1, 1000, 41),
    PodShape(4_000, 31_250, 1, 1000, 40),
    PodShape(15_200, 80_896, 1, 1000, 36),
    PodShape(16_000, 65_536, 1, 1000, 33),
    PodShape(4_152, 10_600, 1, 810, 31),
    PodShape(6_000, 12_288, 1, 460, 29),
    PodShape(16_400, 125_952, 1, 1000, 27),
    PodShape(4_000, 22_888, 1, 230, 26),
    PodShape(4_000, 15_258, 1, 220, 24),
    PodShape(1_000, 2_048, 1, 320, 22),
    PodShape(6_000, 22_888, 1, 160, 20),
    PodShape(8_000, 30_517, 1, 220, 19),
    PodShape(88_000, 327_680, 8, 1000, 18),
    PodShape(4_000, 22_888, 1, 480, 18),
    PodShape(8_000, 30_517, 1, 230, 18),
    PodShape(6_000, 18_432, 1, 460, 18),
    PodShape(64_200, 263_168, 8, 1000, 18),
    PodShape(11_300, 37_888, 1, 1000, 16),
    PodShape(1_000, 6_144, 1, 1000, 15),
    PodShape(8_000, 30_517, 1, 650, 12),
    PodShape(4_000, 15_258, 1, 230, 12),
    PodShape(7_000, 30_000, 1, 1000, 11),
    PodShape(4_000, 22_888, 1, 220, 11),
    PodShape(11_400, 57_344, 0, 0, 11),
    PodShape(8_000, 15_625, 0, 0, 11),
    PodShape(6_000, 8_192, 1, 460, 9),
    PodShape(4_000, 22_888, 1, 110, 9),
    PodShape(32_200, 132_096, 4, 1000, 9),
    PodShape(15_400, 90_112, 1, 1000, 9),
    PodShape(4_000, 16_384, 1, 1000, 8),
    PodShape(4_000, 15_258, 1, 110, 8),
    PodShape(12_000, 32_768, 1, 1000, 8),
    PodShape(12_000, 47_104, 1, 1000, 8),
    PodShape(16_000, 31_250, 0, 0, 8),
    PodShape(4_000, 30_517, 1, 220, 8),
    PodShape(14_900, 73_728, 1, 1000, 8),
    PodShape(6_000, 16_384, 1, 460, 7),
    PodShape(16_200, 66_560, 2, 1000, 7),
)
"""The 75 commonest of 151 shapes, commonest first: 97.8% of the pods, every size of GPU request among them."""

QOS_COUNTS: Final = {"LS": 4647, "BE": 3398, "Burstable": 100, "Guaranteed": 7}
"""Pods per class of service: latency-sensitive, best effort, and the two Kubernetes classes."""
