"""The features of images, each encoded once, and where they stand in a pass over several prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parity.engines.embedded.media import SeenImage, Vision
from parity.engines.embedded.model import Model, Sight
from parity.engines.embedded.recently_used import RecentlyUsed

FEATURES_BYTES = 64 << 20


class Features:
    """What a model's vision encoder makes of images, kept by their content; `encoded` and `cached` count images."""

    def __init__(self, model: Model) -> None:
        self.encoded = 0
        self.cached = 0
        self._model = model
        self._held: RecentlyUsed[torch.Tensor] = RecentlyUsed(FEATURES_BYTES, lambda features: features.nbytes)

    def clear(self) -> None:
        """Forgets all."""
        self._held.clear()

    def of(self, image: SeenImage) -> torch.Tensor:
        """Features (tokens, hidden) of an image."""
        features = self._held.get(image.digest)
        if features is not None:
            self.cached += 1
            return features
        features = self._model.encode_image(image.patches, image.grid)
        self._held.put(image.digest, features)
        self.encoded += 1
        return features

    def sight(self, prompts: Sequence[tuple[Vision | None, int]], columns: torch.Tensor) -> Sight | None:
        """Where the images of prompts are in a pass over columns (B, S); None where no prompt has any.

        Args:
            prompts: The images of each prompt, and how many of its tokens lie before the first column.
            columns: Of each token; after a prompt's end there may be its output, and padding.
        """
        if not any(vision for vision, _ in prompts):
            return None
        positions = columns.expand(3, -1, -1).clone()
        is_image = torch.zeros(columns.shape, dtype=torch.bool)
        features = [torch.zeros((0, self._model.config.hidden_size), dtype=torch.float64)]
        for row, (vision, held) in enumerate(prompts):
            if vision is None:
                continue
            positions[:, row] += vision.shift
            new = slice(0, max(len(vision.key) - held, 0))
            positions[:, row, new] = vision.positions[:, held:]
            is_image[row, new] = torch.tensor([token < 0 for token in vision.key[held:]], dtype=torch.bool)
            features += self._last(vision, int(is_image[row].sum()))
        return Sight(positions, is_image, torch.cat(features))

    def _last(self, vision: Vision, count: int) -> list[torch.Tensor]:
        """The features of a prompt's last image tokens; images that have none of these are not looked at."""
        parts: list[torch.Tensor] = []
        for image in reversed(vision.images):
            if count <= 0:
                break
            parts.append(self.of(image)[-count:])
            count -= len(parts[-1])
        return parts[::-1]
