"""Sizes of Wide-ResNet by name, and their FLOP in closed form.

Source: Alpa section 8.1 (docs/facts.md section 6): 224x224x3, 1024 classes, float32.  `tiny` is
ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwise.models.sizes.size_table import SizeTable
from meshwise.models.wide_resnet import BLOCKS, EXPANSION, WideResNetConfig

wide_resnet_config = SizeTable(
    "Wide-ResNet",
    WideResNetConfig,
    "num_layers base_channels width_factor num_classes image_size",
    {
        "tiny": (14, 8, 2, 16, 32),
        "250M": (50, 160, 2, 1024, 224),
        "500M": (50, 224, 2, 1024, 224),
        "1B": (50, 320, 2, 1024, 224),
        "2B": (50, 448, 2, 1024, 224),
        "4B": (50, 640, 2, 1024, 224),
        "6.8B": (50, 320, 16, 1024, 224),
        "13B": (101, 320, 16, 1024, 224),
    },
)


def convolutions(config: WideResNetConfig) -> Iterator[tuple[int, int, int, int]]:
    """Size of the kernel, channels in and out, height of the result, of each convolution."""
    image = (config.image_size + 1) // 2
    base = config.base_channels
    yield 7, 3, base, image
    image = (image + 1) // 2
    before = base
    for group, count in enumerate(BLOCKS[config.num_layers]):
        inner = base * 2**group
        wide, after = inner * config.width_factor, EXPANSION * inner
        for number in range(count):
            yield 1, before, inner, image
            if group > 0 and number == 0:
                image = (image + 1) // 2
            yield 3, inner, wide, image
            yield 1, wide, after, image
            if number == 0:
                yield 1, before, after, image
            before = after


def forward_flop(config: WideResNetConfig, batch: int) -> int:
    """FLOP of the convolutions and of the output of one forward pass on `batch` images.

    `2 k^2 i o` for each point of a result; padding counts as data.
    """
    points = sum(2 * k * k * i * o * image * image for k, i, o, image in convolutions(config))
    features = EXPANSION * config.base_channels * 2 ** (len(BLOCKS[config.num_layers]) - 1)
    return batch * (points + 2 * features * config.num_classes)
