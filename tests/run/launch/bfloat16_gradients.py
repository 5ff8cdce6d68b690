"""Count backward passes in bfloat16 whose gradients are not finite: RECIPE IMAGES PASSES.

Before each pass, freed memory is filled with NaN, so that uninitialised gradients show. Every 20th pass is compared
with float32.
"""

import json
import sys

import torch

from fullrank.objectives import total
from fullrank.recipes import RECIPES, build_method
from fullrank.recipes.assembling import view_sizes
from fullrank.run.precision import POISONED_BYTES


def main(name, images, passes):
    recipe = RECIPES[name]
    method = build_method(recipe).to(memory_format=torch.channels_last)
    parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
    rng = torch.Generator().manual_seed(0)

    def gradient(views, bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            embeddings = method(views)
        loss = total(method.terms({key: embeddings[key] for key in method.input_names}))
        poison = [torch.full((size // 4,), torch.nan) for size in POISONED_BYTES]
        del poison
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat([each.flatten() for each in found if each is not None])

    wrong, smallest = 0, 1.0
    for step in range(passes):
        views = [
            torch.randn(V, images, recipe.data.channels, size, size, generator=rng)
            for size, V in view_sizes(recipe).items()
        ]
        found = gradient(views, bfloat16=True)
        wrong += not found.isfinite().all()
        if step % 20 == 0:
            smallest = min(smallest, torch.cosine_similarity(found, gradient(views, bfloat16=False), dim=0).item())
    print(json.dumps({"passes": passes, "not finite": int(wrong), "smallest cosine": smallest}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
